"""Whether auto is ever slower than dense or bf16: a grid of sizes, ranks and links.

    sudo .venv/bin/python benchmarks/auto.py --results auto.jsonl

In the lab (about 20 minutes on a quiet machine), unshaped over loopback.
Every cell attaches dense, bf16 and auto to models with one parameter each (with
`--layers` more: several buckets, as DDP draws them), lets auto try until it settles,
and then times backward passes of all three in turns, each on the slowest rank. Auto may
be slower than the best by 3 %, by 0.2 ms or by the best's interquartile spread,
whichever is most. PyTorch's own bf16 hook is timed as well, but not judged by: it
forgets what it rounds off.

Cells are kept in the file of results, one line each, and not measured again: delete the
file to start anew. Verified in each cell: all ranks hold the same gradients, and
(up to 5 M) delivered plus residual of auto add up to what dense delivered.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.tools.bench.machine import machine
from thinwire.tools.lab import Lab

SIZES = (100_000, 1_000_000, 5_000_000, 25_000_000)
RANKS = (2, 4, 8)
RATES = ("100mbit", "1gbit", "unshaped")
NAMES = ("dense", "bf16", "auto", "torch bf16")
JUDGES = ("dense", "bf16")
CHOICES = ("dense", "bf16", "spardl")

SHARE, SECONDS = 0.03, 0.2e-3
# Repetitions of a cell: as many as its share of time allows, within limits.
CELL_SECONDS, FEWEST, MOST = 10.0, 3, 25
SETTLED_BY = 100
CHECKED = 5_000_000
MARK = "cell: "


class Give(torch.autograd.Function):
    """A backward pass that costs nothing but its reduction."""

    @staticmethod
    def forward(ctx, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx, _: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class Model(nn.Module):
    """Constant parameters, in memory that models may share."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(part) for part in parts)
        self.sizes = [len(part) for part in parts]

    def forward(self, gradient: Tensor) -> Tensor:
        parts = zip(self.layers, gradient.split(self.sizes), strict=True)
        return sum(Give.apply(layer, part) for layer, part in parts)


def torch_bf16(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """PyTorch's hook; DDP knows it by name, and refuses it where there is no CUDA."""
    return bf16_compress_hook(state, bucket)


class Contender:
    """A model with a method attached, and how long its backward passes took."""

    def __init__(self, name: str, parts: Sequence[Tensor]) -> None:
        size = sum(len(part) for part in parts)
        self.model = DDP(Model(parts), gradient_as_bucket_view=True, init_sync=False)
        self.state = None
        if name == "torch bf16":
            self.model.register_comm_hook(None, torch_bf16)
        else:
            self.state = thinwire.attach(self.model, name)
        self.times: list[float] = []
        self.delivered = torch.zeros(size if size <= CHECKED else 0)

    def step(self, gradient: Tensor) -> float:
        self.model.zero_grad(set_to_none=False)
        loss = self.model(gradient)
        dist.barrier()
        start = perf_counter()
        loss.backward()
        taken = torch.tensor(perf_counter() - start)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if len(self.delivered):
            self.delivered += torch.cat([layer.grad for layer in self.layers])
        return taken.item()

    @property
    def layers(self) -> list[nn.Parameter]:
        return list(self.model.module.layers)

    @property
    def choices(self) -> list[int]:
        """What is chosen for each unit, -1 where nothing is."""
        found = self.state.metrics()
        return [int(found[name]) for name in found if name.endswith("_choice")]

    @property
    def settled(self) -> bool:
        return min(self.choices, default=-1) >= 0

    def residual(self) -> Tensor:
        """The mean over ranks of what is still remembered."""
        entries = self.state.state_dict()
        (mine,) = [entries[key] for key in entries if key.startswith("rank ")]
        held = mine["residual"]
        mean = torch.cat([held[f"layers.{n}"] for n in range(len(self.layers))])
        dist.all_reduce(mean)
        return mean / dist.get_world_size()


def gradients(size: int, rank: int) -> Callable[[int], Tensor]:
    """Gradients by step: noise, heavy at the ends, in the memory of one of them."""
    torch.manual_seed(rank)
    stock = torch.randn(size + 1024 * 64)
    stock *= torch.randn(len(stock)).abs_()

    def at(step: int) -> Tensor:
        start = 1024 * (step * 37 % 64)
        return stock[start : start + size]

    return at


def measure(size: int, layers: int) -> dict[str, object]:
    """One cell, on one rank of its group."""
    gradient = gradients(size, dist.get_rank())
    parts = torch.zeros(size).chunk(layers)
    contenders = {name: Contender(name, parts) for name in NAMES}
    auto, dense = contenders["auto"], contenders["dense"]
    tried = 0
    while not auto.settled and tried < SETTLED_BY:
        auto.step(gradient(tried))
        tried += 1
    for number in range(2):  # which delivers the residual, and the rest
        auto.step(gradient(tried + number))
    # A pass each, to start with: DDP's first is not like the others.
    once = sum(contenders[name].step(gradient(tried)) for name in NAMES)
    repeats = max(FEWEST, min(MOST, int(CELL_SECONDS / once)))
    for step in range(repeats):
        for turn in range(len(NAMES)):
            contender = contenders[NAMES[(step + turn) % len(NAMES)]]
            contender.times.append(contender.step(gradient(step)))
    verify(contenders, tried, gradient)
    dense.state.check_replicas()
    return {
        "size": size,
        "ranks": dist.get_world_size(),
        "choices": [CHOICES[choice] for choice in auto.choices],
        "tried": tried,
        "times": {name: contenders[name].times for name in NAMES},
    }


def verify(
    contenders: dict[str, Contender], tried: int, gradient: Callable[[int], Tensor]
) -> None:
    for name, contender in contenders.items():
        sums = [zlib.crc32(layer.grad.numpy()) for layer in contender.layers]
        mine = torch.tensor([sum(sums)])
        sums = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(sums, mine)
        assert len({int(each) for each in sums}) == 1, f"{name}: ranks differ"
    auto, dense = contenders["auto"], contenders["dense"]
    if not len(auto.delivered):
        return
    # Auto alone took the steps before it had settled.
    early = sum(gradient(step).double() for step in range(tried + 2)).float()
    dist.all_reduce(early)
    truth = dense.delivered + early / dist.get_world_size()
    gap = (auto.delivered + auto.residual() - truth).norm() / truth.norm()
    assert gap < 1e-4, f"auto lost {gap:.1e} of the gradient"


def work(sizes: Sequence[int], layers: int) -> None:
    """All cells of one group of ranks; rank 0 prints a line for each."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for size in sizes:
        cell = measure(size, layers)
        if dist.get_rank() == 0:
            print(MARK + json.dumps(cell), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_group(
    rate: str, ranks: int, sizes: Sequence[int], layers: int
) -> Iterator[str]:
    """The lines that a group of ranks prints."""
    command = [sys.executable, __file__, "--work", ",".join(map(str, sizes))]
    command += ["--layers", str(layers)]
    lines: list[str] = []
    if rate == "unshaped":
        yield from loopback(command, ranks)
        return
    with Lab(ranks, rate) as lab:
        outcome = lab.run(command, tell=lambda host, line: lines.append(line))
    if outcome.code:
        raise SystemExit("\n".join(lines[-30:]))
    yield from lines


def loopback(command: Sequence[str], ranks: int) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    common["GLOO_SOCKET_IFNAME"] = "lo"
    started = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    yield from started[0].stdout
    if any(each.wait() for each in started):
        raise SystemExit("a rank failed: its error is above")


def verdict(cell: dict) -> dict[str, object]:
    """Medians, spreads, and whether auto is within the limit, in seconds."""
    middle = {name: median(times) for name, times in cell["times"].items()}
    best = min(JUDGES, key=middle.__getitem__)
    low, _, high = quantiles(cell["times"][best], n=4, method="inclusive")
    allowed = max(SHARE * middle[best], SECONDS, high - low)
    within = middle["auto"] <= middle[best] + allowed
    wins = not set(JUDGES) & set(cell["choices"])
    return {"middle": middle, "best": best, "within": within, "wins": wins}


def show(cells: Sequence[dict], console: Console) -> None:
    table = Table(title="ms of backward on the slowest rank: median (interquartile)")
    for head in ("link", "P", "n", "choice", *NAMES, "auto / best", "within"):
        table.add_column(head, justify="right")
    for cell in cells:
        found = verdict(cell)
        spans = [
            quantiles(cell["times"][name], n=4, method="inclusive") for name in NAMES
        ]
        times = [f"{1e3 * b:.1f} ({1e3 * (c - a):.1f})" for a, b, c in spans]
        ratio = found["middle"]["auto"] / found["middle"][found["best"]]
        where = cell["rate"], str(cell["ranks"]), f"{cell['size']:,}", named(cell)
        within = "yes" if found["within"] else "NO"
        table.add_row(*where, *times, f"{ratio:.2f}", within)
    console.print(table)
    verdicts = [verdict(cell) for cell in cells]
    kept = sum(each["within"] for each in verdicts)
    won = sum(each["wins"] for each in verdicts)
    console.print(f"auto is within the limit in {kept} of {len(cells)} cells")
    console.print(f"compression wins in {won} of {len(cells)} cells")


def named(cell: dict) -> str:
    """What was chosen, and for how many units where they differ."""
    counts = Counter(cell["choices"])
    if len(counts) == 1:
        return cell["choices"][0]
    return ", ".join(f"{count} {choice}" for choice, count in counts.items())


def grid(args: argparse.Namespace) -> Iterator[tuple[str, int, list[int]]]:
    """The groups that have cells to measure."""
    known = {(c["rate"], c["ranks"], c["size"]) for c in read(args.results)}
    for rate, ranks in product(args.rates.split(","), numbers(args.ranks)):
        sizes = [n for n in numbers(args.sizes) if (rate, ranks, n) not in known]
        if sizes:
            yield rate, ranks, sizes


def numbers(text: str) -> list[int]:
    return [int(float(each)) for each in text.split(",")]


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("auto.jsonl"))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--layers", type=int, default=1, help="parameters of a model")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(numbers(args.work), args.layers)
        return
    console = Console(width=160)
    groups = list(grid(args))
    with Progress(console=console) as progress:
        task = progress.add_task("cells", total=sum(len(sizes) for *_, sizes in groups))
        for rate, ranks, sizes in groups:
            for line in run_group(rate, ranks, sizes, args.layers):
                if line.startswith(MARK):
                    cell = {"rate": rate, **json.loads(line.removeprefix(MARK))}
                    with args.results.open("a") as file:
                        file.write(json.dumps(cell) + "\n")
                    progress.advance(task)
    console.print(machine())
    show(read(args.results), console)


if __name__ == "__main__":
    main()
