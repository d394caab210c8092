"""The speed of whole reductions in two checkouts of thinwire, measured in turns.

    python benchmarks/before_after.py BEFORE AFTER --sizes 14_700_000 1_000_000

Each checkout has its own processes, which talk over Gloo on loopback and live as long
as the run. One checkout reduces at a time while the other waits; the order changes from
turn to turn. "wall" is of the slowest rank and "cpu" the processor time of all threads
of all ranks; both are medians over the turns of the median reduction of a turn, with
the quartiles over the turns. A ratio is the median of the ratios of each pair of turns.

"calls" is how often one reduction of rank 0 calls a Python function, and "C calls" how
often it calls a built-in one, in the thread that reduces.

Verified after each turn: all ranks of both checkouts hold the same mean, bit for bit.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "spardl": ("spardl", {}),
    "gtopk": ("gtopk", {}),
    "topk": ("topk", {}),
}
WARM = 6
GRADIENTS = 3
PERIOD = 1 << 16


class Tree:
    """The processes of one checkout, driven by lines of JSON."""

    def __init__(self, path: Path, ranks: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(path.resolve() / "src"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(ranks),
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker"],
                env={**environment, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """Send all ranks a command; what each returns."""
        for process in self._processes:
            assert process.stdin is not None
            print(json.dumps(command), file=process.stdin, flush=True)
        return [json.loads(p.stdout.readline()) for p in self._processes]  # type: ignore[union-attr]

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def turn(tree: Tree, steps: int) -> tuple[float, float, str]:
    """Wall and processor seconds of a turn's median reduction, and the mean's hash."""
    found = tree.ask(do="reduce", steps=steps)
    hashes = {each["hash"] for each in found}
    assert len(hashes) == 1, "replicas differ"
    walls = [max(step) for step in zip(*(each["wall"] for each in found), strict=True)]
    cpus = [sum(step) for step in zip(*(each["cpu"] for each in found), strict=True)]
    return median(walls), median(cpus), hashes.pop()


def measure(trees: list[Tree], case: dict[str, Any], turns: int, steps: int) -> None:
    """Print a line for each checkout and one of ratios."""
    for tree in trees:
        tree.ask(do="prepare", **case)
        turn(tree, WARM)
    calls = [tree.ask(do="count")[0] for tree in trees]
    samples: list[list[tuple[float, float]]] = [[], []]
    for number in range(turns):
        hashes = {}
        for which in ((0, 1), (1, 0))[number % 2]:
            wall, cpu, hashes[which] = turn(trees[which], steps)
            samples[which].append((wall, cpu))
        assert hashes[0] == hashes[1], "the checkouts deliver different means"
    print(f"\n{case['method']}, {case['size']:,} elements")
    for name, sample, counted in zip(("before", "after"), samples, calls, strict=True):
        wall, cpu = (spread([each[i] for each in sample]) for i in (0, 1))
        counts = f"{counted['calls']:6} calls {counted['c_calls']:6} C calls"
        print(f"  {name:7} wall {wall} ms   cpu {cpu} ms {counts}")
    ratios = [
        [new[i] / old[i] for old, new in zip(*samples, strict=True)] for i in (0, 1)
    ]
    wall, cpu = (spread(each, scale=1.0, digits=3) for each in ratios)
    print(f"  ratio   wall {wall}      cpu {cpu}", flush=True)


def spread(values: list[float], scale: float = 1e3, digits: int = 2) -> str:
    """The median and, in brackets, the quartiles.

    >>> spread([1.0, 2.0, 3.0], scale=1.0, digits=1)
    '     2.0 (1.0 to 3.0)'
    """
    low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    shown = [f"{value * scale:.{digits}f}" for value in (middle, low, high)]
    return f"{shown[0]:>8} ({shown[1]} to {shown[2]})"


class Worker:
    """One rank of one checkout."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        from thinwire.groups.torch import TorchGroup

        self.torch, self.dist, self.group = torch, dist, TorchGroup()

    def prepare(self, method: str, size: int, density: float) -> dict[str, Any]:
        """Make a reducer and gradients: Laplace values with a scale for each run."""
        from thinwire import catalog
        from thinwire.layout import Layout

        name, options = METHODS[method]
        self.pipeline = catalog.reducer(name, density=density, **options)
        self.state = self.pipeline.init(Layout.flat(size))
        torch = self.torch
        generator = torch.Generator().manual_seed(1 + self.group.rank)
        scales = torch.randn(-(-size // PERIOD), generator=generator).exp_()
        self.gradients = []
        for _ in range(GRADIENTS):
            values = torch.empty(size).exponential_(generator=generator)
            values.mul_(torch.rand(size, generator=generator).sub_(0.5).sign_())
            for part, scale in zip(values.split(PERIOD), scales, strict=True):
                part.mul_(scale)
            self.gradients.append(values)
        self.gradient = torch.empty(size)
        self.steps = 0
        return {}

    def step(self, around: Any = None) -> tuple[float, float]:
        """One reduction: its wall and processor seconds on this rank."""
        self.gradient.copy_(self.gradients[self.steps % GRADIENTS])
        self.steps += 1
        self.dist.barrier()
        start, started = process_time(), perf_counter()
        sys.setprofile(around)
        mean = self.pipeline.reduce_([self.gradient], self.group, self.state)
        self.pipeline.settle(mean, self.state)
        sys.setprofile(None)
        return perf_counter() - started, process_time() - start

    def reduce(self, steps: int) -> dict[str, Any]:
        samples = [self.step() for _ in range(steps)]
        digest = hashlib.blake2b(self.gradient.numpy(), digest_size=8).hexdigest()
        return {
            "wall": [wall for wall, _ in samples],
            "cpu": [cpu for _, cpu in samples],
            "hash": digest,
        }

    def count(self) -> dict[str, int]:
        """Python and C calls of one reduction."""
        counts = {"call": 0, "c_call": 0}

        def note(frame: Any, event: str, argument: Any) -> None:
            if event in counts:
                counts[event] += 1

        self.step(note)
        # The call that ends the count is not the reduction's.
        return {"calls": counts["call"], "c_calls": counts["c_call"] - 1}


def work() -> None:
    """Do what is asked on standard input until it ends."""
    worker = Worker()
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(worker, command.pop("do"))(**command)), flush=True)
    worker.dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--sizes", type=int, nargs="+", default=[14_700_000, 1_000_000])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=9, help="reductions in a turn")
    chosen = parser.parse_args()
    from thinwire.tools.bench.machine import machine

    print(f"{machine()}; P = {chosen.ranks}, density {chosen.density}")
    trees = [Tree(path, chosen.ranks) for path in (chosen.before, chosen.after)]
    try:
        for size in chosen.sizes:
            for method in chosen.methods:
                case = {"method": method, "size": size, "density": chosen.density}
                measure(trees, case, chosen.turns, chosen.steps)
    finally:
        for tree in trees:
            tree.close()


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
