"""Compile time: the first SparDL reduction on a fresh machine, and later.

    python benchmarks/compile.py
    python benchmarks/compile.py --ranks 8 --cores 0,1 --kernels

Three times, each in processes of its own: one process of 4 simulated ranks with an
empty cache; the same from the cache that this left; and real ranks over loopback that
start together with an empty cache. Float32, the default codec, a million elements; the
cache is a temporary folder. Processes have imported torch, and ranks have met, before
the clock starts; importing numba, importing our modules and kernels are listed apart.
"kernels" of one process adds up what each kernel took to compile or load; of ranks it
is the first steps of the slowest less as many later ones, waits included.

Verified: the mean is the same bits, compiled or loaded, on every rank.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

SIZE = 1_000_000
DENSITY = 0.01
SIMULATED = 4
# The first step has no hints, and marks nothing: later ones need other kernels.
STEPS = 3

# The most seconds by the clock, and of which phases: from the cache it is all
# that comes after numba, else what compiling takes.
TARGETS = {
    "cold": (8.0, ("kernels",)),
    "cached": (0.6, ("modules", "kernels")),
    "ranks": (12.0, ("kernels",)),
}


class Seconds(NamedTuple):
    """By the clock, and of the processor."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> "Seconds":
        wall, cpu = perf_counter(), process_time()
        work()
        return cls(perf_counter() - wall, process_time() - cpu)


def parts_of_a_start() -> dict[str, Seconds]:
    def numba() -> None:
        import numba  # noqa: F401

    def modules() -> None:
        import thinwire.groups.torch  # noqa: F401
        from thinwire import catalog
        from thinwire.kernels.dispatch import preload

        catalog.codec(catalog.DEFAULT_CODEC)
        preload("cpu")

    return {"numba": Seconds.of(numba), "modules": Seconds.of(modules)}


def kernels() -> Iterator[tuple[str, Any]]:
    """Every kernel that has a place in the cache, by name."""
    prefix = "thinwire.kernels.cpu."
    for name, module in sorted(sys.modules.items()):
        for attribute, found in vars(module).items() if name.startswith(prefix) else ():
            cache = getattr(found, "_cache", None)
            own = getattr(found, "__module__", None) == name
            if own and getattr(cache, "cache_path", None):
                yield f"{name.removeprefix('thinwire.kernels.')}.{attribute}", found


def clocked(taken: dict[str, Seconds]) -> None:
    """Note what each kernel takes until it can be called, with those it calls.

    Ranks are threads: the first one compiles, and the others find it done.
    """
    one_at_a_time, within = RLock(), []
    for name, dispatcher in kernels():

        def compile_clocked(
            signature: Any, name: str = name, inner: Any = dispatcher.compile
        ) -> Any:
            answer: list[Any] = []
            with one_at_a_time:
                within.append(name)
                seconds = Seconds.of(lambda: answer.append(inner(signature)))
                within.pop()
                if not within:
                    taken.setdefault(name, seconds)
            return answer[0]

        dispatcher.compile = compile_clocked


def compiled() -> int:
    return sum(sum(k.stats.cache_misses.values()) for _, k in kernels())


def steps(group: Any) -> Tensor:
    from thinwire import catalog
    from thinwire.collectives import SparDL
    from thinwire.layout import Layout
    from thinwire.reducers import Pipeline

    pipeline = Pipeline(SparDL(DENSITY), catalog.codec(catalog.DEFAULT_CODEC))
    state = pipeline.init(Layout.flat(SIZE))
    generator = torch.Generator().manual_seed(group.rank)
    for _ in range(STEPS):
        grad = torch.randn(SIZE, generator=generator)
        pipeline.reduce_([grad], group, state)
    return grad


def digest(mean: Tensor) -> str:
    return sha256(mean.numpy().tobytes()).hexdigest()


def alone() -> dict[str, Any]:
    """One process, whose ranks are threads."""
    found: dict[str, Any] = {**parts_of_a_start()}
    from thinwire.groups import simulate

    taken: dict[str, Seconds] = {}
    clocked(taken)
    means = simulate(SIMULATED, steps)
    found["kernels"] = [sum(column) for column in zip(*taken.values(), strict=True)]
    digests = [digest(mean) for mean in means]
    return {**found, "each": taken, "compiled": compiled(), "digests": digests}


def together(rank: int, ranks: int, port: int) -> dict[str, Any]:
    """One of several processes that start at the same moment."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    dist.barrier()
    found: dict[str, Any] = {**parts_of_a_start()}
    from thinwire.groups.torch import TorchGroup

    group = TorchGroup.own()
    dist.barrier()
    means: list[Tensor] = []
    first, later = (Seconds.of(lambda: means.append(steps(group))) for _ in range(2))
    found["kernels"] = [a - b for a, b in zip(first, later, strict=True)]
    dist.barrier()
    dist.destroy_process_group()
    return {**found, "compiled": compiled(), "digests": [*map(digest, means)]}


def child(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    found = alone() if args.port is None else together(args.rank, args.ranks, args.port)
    print(json.dumps(found))


class Starts:
    """Starts processes on some cores, with a cache of their own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._cores = {int(core) for core in args.cores.split(",")}
        self._ranks = args.ranks

    def alone(self, cache: Path) -> list[dict[str, Any]]:
        return self._run(cache, [[]])

    def together(self, cache: Path) -> list[dict[str, Any]]:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = ["--port", str(store.port), "--ranks", str(self._ranks)]
        del store
        return self._run(
            cache, [[*shared, "--rank", str(r)] for r in range(self._ranks)]
        )

    def _run(self, cache: Path, each: list[list[str]]) -> list[dict[str, Any]]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
        os.sched_setaffinity(0, self._cores)
        command = [sys.executable, __file__, "--child"]
        processes = [
            subprocess.Popen(
                [*command, *args], env=environment, stdout=subprocess.PIPE, text=True
            )
            for args in each
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("a process failed; what it said is above")
        return [json.loads(output) for output in outputs]


def show(
    name: str, found: list[dict[str, Any]], target: tuple[float, tuple[str, ...]]
) -> None:
    """The slowest process by the clock, all of them by the processor."""
    cells = []
    for phase in ("numba", "modules", "kernels"):
        wall = max(process[phase][0] for process in found)
        cpu = sum(process[phase][1] for process in found)
        cells.append(f"{wall:8.2f} {cpu:8.2f}")
    count = sum(process["compiled"] for process in found)
    limit, phases = target
    slowest = max(sum(process[phase][0] for phase in phases) for process in found)
    verdict = f"{'within' if slowest <= limit else 'above'} {limit:g} s"
    print(f"{name:16} {' '.join(cells)} {count:9}   {' + '.join(phases)} {verdict}")


def show_each(cold: dict[str, Any], cached: dict[str, Any]) -> None:
    print(f"\n{'cpu ms':36} {'compiled':>9} {'loaded':>9}")
    for name, (_, cpu) in cold["each"].items():
        loaded = cached["each"][name][1]
        print(f"{name:36} {1e3 * cpu:9.0f} {1e3 * loaded:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--cores", default="0,1", help="on which to run, as in 0,1")
    parser.add_argument("--kernels", action="store_true", help="one by one, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    from thinwire.tools.bench.machine import machine

    starts = Starts(args)
    print(f"{machine()}; cores {args.cores}; load {os.getloadavg()[0]:.1f}")
    print("seconds of the slowest process, and of the processor over all of them\n")
    heads = "".join(f"{head:>18}" for head in ("numba", "modules", "kernels"))
    print(f"{'':15}{heads}  compiled")
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        cold = starts.alone(Path(one))
        show("cold", cold, TARGETS["cold"])
        cached = starts.alone(Path(one))
        show("cached", cached, TARGETS["cached"])
        ranks = starts.together(Path(other))
        show(f"{args.ranks} cold ranks", ranks, TARGETS["ranks"])
    if args.kernels:
        show_each(cold[0], cached[0])
    for group in (cold + cached, ranks):
        assert len({d for p in group for d in p["digests"]}) == 1, "other bits"
    print("\nverified: the same mean, compiled or loaded, on every rank")


if __name__ == "__main__":
    main()
