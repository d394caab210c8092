"""Forecasts of `thinwire plan` against reductions measured in the lab.

    sudo .venv/bin/python benchmarks/plan_validation.py

Eight methods on 2, 4 and 8 hosts, at 100 Mbit/s and 1 Gbit/s, two sizes, density 1 %:
one whole reduction of fresh gradients, from a common start until the slowest rank has
its mean; the median of as many as fit into some seconds, methods in turns: a slow
moment of the machine is then a moment of each. The forecast knows that all ranks
share this machine's cores, what `thinwire plan` measures of a machine, anew before the
first cell, and what `thinwire bench net` measures of a network: how long rounds take,
by their bytes, while all ranks take part. That is measured in the lab before its cells.
With `--nominal` the forecast knows the rate and the burst of the links instead, as if
they had been given by name.

Every cell is a line of a file once all of its size are measured, and a run that was
interrupted goes on with the others; `--anew` starts over. Verified: in every cell's
last step all ranks have the same mean, bit for bit.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from plan_validation_cells import Cell, Key, cells, rounds_of, row, summary
from thinwire.cost import Link, Rounds
from thinwire.groups import Op
from thinwire.groups.torch import TorchGroup
from thinwire.layout import Layout
from thinwire.tools import round_timing
from thinwire.tools.bench.machine import machine as named_machine
from thinwire.tools.lab import Lab
from thinwire.tools.lab.shaping import rate_name, shapes
from thinwire.tools.plan import machine
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import Reduction, Scenario, named, reduced
from thinwire.tools.plan.machine import Machine
from thinwire.tools.quantities import parse_rate

METHODS = (
    "dense",
    "bf16",
    "topk",
    "gtopk",
    "gtopk:variant=tree",
    "spardl:teams=1",
    "spardl:teams=2",
    "gs-sgd",
)
RANKS = (2, 4, 8)
RATES = ("100mbit", "1gbit")
SIZES = (1_000_000, 14_700_000)
DENSITY = 0.01
FILE = Path(tempfile.gettempdir()) / "thinwire-plan-validation.jsonl"

SECONDS = 2.5  # for the timed steps of a cell
FEWEST, MOST = 1, 45
WARM = 4  # until selection has its hints
SLOW = 1.5  # seconds of a step that is not repeated for practice
SHIFT = 4099
PERIOD = 1 << 16
LAB_TIMEOUT = 1200.0


class Gradients:
    """Laplace's, with a scale for each run of 64 k elements; each step moved on."""

    def __init__(self, size: int, rank: int) -> None:
        self.size = size
        length = size + (WARM + MOST + 2) * SHIFT
        generator = torch.Generator().manual_seed(1 + rank)
        self._drawn = torch.empty(length).exponential_(generator=generator)
        signs = torch.randint(0, 2, (length,), generator=generator, dtype=torch.int8)
        self._drawn *= 2 * signs - 1
        scales = torch.Generator().manual_seed(0)
        spread = torch.randn(-(-length // PERIOD), generator=scales).exp_()
        self._drawn *= spread.repeat_interleave(PERIOD)[:length]

    def fill_(self, grad: Tensor, step: int) -> None:
        grad.copy_(self._drawn[step * SHIFT :][: self.size])


def work(rate: str, todo: list[tuple[str, int]]) -> None:
    """On every host: measure; the first one prints the cells."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    group = TorchGroup.own()
    rounds = round_timing.measure(group)
    if group.rank == 0:
        found = {"rounds": asdict(rounds), "rate": rate, "ranks": group.size}
        print(json.dumps(found), flush=True)
    for method, _ in todo:  # kernels are loaded before anything is timed
        reduction(method, 1000, group)(torch.ones(1000))
    for size in dict.fromkeys(size for _, size in todo):
        gradients = Gradients(size, group.rank)
        methods = [method for method, wanted in todo if wanted == size]
        each_in_turn = [MethodTurns(method, gradients, group) for method in methods]
        in_turns(each_in_turn)
        for turns in each_in_turn:
            check_identical(turns.grad)
            if group.rank == 0:
                cell = Cell(turns.method, group.size, rate, size, *turns.found())
                print(json.dumps(asdict(cell)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def reduction(method: str, size: int, group: TorchGroup) -> Callable[[Tensor], object]:
    choice = Choice.parse(method, DENSITY)
    if method == "dense":  # as plain DDP does it

        def all_reduce(grad: Tensor) -> None:
            dist.all_reduce(grad)
            grad.div_(group.size)

        return all_reduce
    state = choice.reducer.init(Layout.flat(size))
    return lambda grad: choice.reducer.reduce_([grad], group, state)


class MethodTurns:
    """One method's cell: some steps for practice, then steps in its turns."""

    def __init__(self, method: str, gradients: Gradients, group: TorchGroup) -> None:
        self.method, self._gradients, self._group = method, gradients, group
        self._reduce = reduction(method, gradients.size, group)
        self.grad = torch.empty(gradients.size)
        self._walls: list[float] = []
        self._cpus: list[float] = []
        while len(self._walls) < WARM and (not self._walls or self._walls[0] < SLOW):
            self.step()
        fitting = int(SECONDS / min(self._walls))
        count = max(FEWEST, min(MOST, fitting))
        self.turns = {i * MOST // count for i in range(count)}  # spread over all
        self._practised = len(self._walls)

    def step(self) -> None:
        self._gradients.fill_(self.grad, len(self._walls))
        self._group.all_reduce_((torch.zeros(1), Op.MAX))  # all start together
        cpu, start = process_time(), perf_counter()
        self._reduce(self.grad)
        taken = torch.tensor([perf_counter() - start], dtype=torch.float64)
        spent = torch.tensor([process_time() - cpu], dtype=torch.float64)
        self._group.all_reduce_((taken, Op.MAX), (spent, Op.SUM))
        self._walls.append(taken.item())
        self._cpus.append(spent.item() / self._group.size)

    def found(self) -> tuple[float, float, float, int]:
        """Median and least seconds of a step, its processor seconds, and how many."""
        walls, cpus = self._walls[self._practised :], self._cpus[self._practised :]
        return median(walls), min(walls), median(cpus), len(walls)


def in_turns(each_in_turn: list[MethodTurns]) -> None:
    for turn in range(MOST):
        for turns in each_in_turn:
            if turn in turns.turns:
                turns.step()


def check_identical(grad: Tensor) -> None:
    mine = torch.tensor([crc32(grad.numpy())])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    assert len({each.item() for each in every}) == 1, "ranks got different means"


def forecast(cell: Cell, speeds: Machine, rounds: Rounds | None) -> Reduction:
    choice = Choice.parse(cell.method, DENSITY)
    setting = scenario(cell.size, cell.ranks, cell.rate)
    setting = replace(setting, rounds=rounds)
    return reduced(choice, cell.size, setting, speeds)


def scenario(size: int, ranks: int, rate: str) -> Scenario:
    """All ranks on this machine, on links that let a burst through at once."""
    bits = parse_rate(rate)
    link = named(Link(0.0, bits / 8, shapes([bits] * ranks)[0].burst))
    cores = os.cpu_count() or 1
    return Scenario(size, ranks, link, ranks_per_machine=ranks, cores=cores)


def measured(options: argparse.Namespace) -> dict[Key, Cell]:
    """Every cell that was asked for, from the file or from the lab."""
    done = {cell.key: cell for cell in cells(options.file)}
    for rate in options.rates:
        for ranks in options.ranks:
            todo = [
                (method, size)
                for size in options.sizes
                for method in options.methods
                if (method, ranks, rate, size) not in done
            ]
            if todo:
                measure(rate, ranks, todo, options.file)
    return {cell.key: cell for cell in cells(options.file)}


def measure(rate: str, ranks: int, todo: list[tuple[str, int]], file: Path) -> None:
    started = perf_counter()

    def tell(host: int, line: str) -> None:
        if host == 0 and line.startswith("{"):
            with file.open("a") as found:
                found.write(line + "\n")
            print(f"  {line}", file=sys.stderr, flush=True)
        else:
            print(f"  [{host}] {line}", file=sys.stderr, flush=True)

    script = [sys.executable, __file__, "--work", json.dumps([rate, todo])]
    with Lab(ranks, rate) as lab:
        outcome = lab.run(script, tell=tell, timeout=LAB_TIMEOUT)
    if outcome.code:
        raise SystemExit(f"host {outcome.failed} failed; run again to go on")
    took = perf_counter() - started
    print(f"{rate}, {ranks} hosts: {took:.0f} s", file=sys.stderr, flush=True)


def show(found: dict[Key, Cell], speeds: Machine, options: argparse.Namespace) -> None:
    print(f"{named_machine()}; all ranks share the cores; density {DENSITY:g}")
    print("ms; forecast = compute + the longer of wire and transport + waits\n")
    heads = ("link", "n", "P", "method", "measured", "least", "cpu", "forecast")
    row((*heads, "error", "compute", "wire", "transport", "waits"), options, head=True)
    known = rounds_of(options.file)
    errors = {}
    for cell in sorted(found.values(), key=lambda c: (c.rate, c.size, c.ranks)):
        if cell.method not in options.methods:
            continue
        rounds = None if options.nominal else known[cell.rate, cell.ranks]
        expected = forecast(cell, speeds, rounds)
        errors[cell.key] = expected.seconds / cell.wall - 1
        times = (cell.wall, cell.least, cell.cpu, expected.seconds)
        parts = (expected.compute, expected.wire, expected.transport, expected.waits)
        name = Choice.parse(cell.method, DENSITY).label
        size = f"{cell.size / 1e6:g} M"
        about = (rate_name(parse_rate(cell.rate)), size, str(cell.ranks), name)
        shares = (f"{errors[cell.key]:+.0%}", *(f"{1e3 * t:.1f}" for t in parts))
        row((*about, *(f"{1e3 * t:.1f}" for t in times), *shares), options)
    summary(errors)
    print("verified: in every cell all ranks got the same mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument(
        "--file", type=Path, default=FILE, help="one line for each cell"
    )
    parser.add_argument("--anew", action="store_true", help="forget what was measured")
    parser.add_argument("--nominal", action="store_true", help="forecast by the rate")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*json.loads(options.work))
        return
    options.methods = options.methods.split(",")
    options.rates = options.rates.split(",")
    options.ranks = [int(ranks) for ranks in options.ranks.split(",")]
    options.sizes = [int(float(size)) for size in options.sizes.split(",")]
    if options.anew:
        options.file.unlink(missing_ok=True)
    choices = [Choice.parse(method, DENSITY) for method in options.methods]
    # Quiet while it is measured: before the lab is up.
    anew = not options.file.exists()
    for ranks in options.ranks:
        sharing = scenario(1, ranks, RATES[0]).sharing
        speeds = machine.known(choices, sharing=sharing, anew=anew, tell=say)
        anew = False
    show(measured(options), speeds, options)


def say(what: str) -> None:
    print(f"measuring this machine: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
