"""Comparisons that were published, replayed: gTop-k's with dense and top-k, SparDL's.

    sudo .venv/bin/python benchmarks/published.py --file published.jsonl
    .venv/bin/python benchmarks/published.py --simulated

gTop-k (arXiv:1901.04359) compares scaling efficiencies on 1 Gbit/s Ethernet at a
density of 0.1 %: the throughput of a worker among P, relative to one that works alone.
Here a step takes what one worker's took there (batch / its throughput) and one
reduction of ours. P = 4 and 8 are measured in the lab, where all ranks share this
machine's processors; 16 and 32 are simulated on links of 1 Gbit/s and 436 us, as the
authors fitted theirs, where only the wire takes time, and without the check for finite
gradients, which they did not have; the processor time of a worker that the lab measured
at the largest P comes to it. Published throughputs are those of
the authors' plotting script; their abstract claims 2.7 to 12 times dense and 1.1 to 1.7
times top-k.

SparDL (arXiv:2304.00737) is compared with top-k by all-gather and gTop-k on 5, 8, 11
and 14 ranks at 1 %: simulated, on the same links, the wire alone. Its own figures could
not be read; "up to 4.9 times" is what others quote.

Large vectors are simulated at 1/s of their size over links of 1/s of the bandwidth. The
lab's cells are lines of the file; those that are there are not run again.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from thinwire import catalog
from thinwire.bench.gradients import Gradients
from thinwire.bench.machine import machine
from thinwire.bench.reduce import Settings
from thinwire.cli.launch import place, run
from thinwire.cost import Link
from thinwire.errors import LabError
from thinwire.groups import SimulatedGroup, simulate
from thinwire.layout import Layout

LINK = Link(latency=436e-6, bandwidth=125e6)
MEMORY = 5e8  # bytes for all simulated ranks
PER_ELEMENT = 16  # bytes: gradient, residual, and what comes and goes
LONG = 1000  # a list this long does not mind a header


@dataclass(frozen=True)
class Model:
    """A published row: size, batch of a worker, and samples per second of a worker."""

    name: str
    size: int
    batch: int
    alone: float
    by_ranks: dict[int, tuple[float, float, float]]  # dense, top-k, gTop-k

    @property
    def step(self) -> float:
        """Seconds of one worker's step."""
        return self.batch / self.alone

    def efficiency(self, reduction: float) -> float:
        return self.step / (self.step + reduction)


GTOPK = (
    Model(
        "ResNet-20",
        269_722,
        128,
        920.6,
        {
            4: (821.7, 908.8, 916.3),
            8: (705.2, 753.0, 868.7),
            16: (520.4, 737.6, 808.5),
            32: (287.9, 696.0, 789.3),
        },
    ),
    Model(
        "VGG-16",
        14_700_000,
        128,
        1317.3,
        {
            4: (104.2, 110.6, 131.1),
            8: (92.6, 109.9, 130.6),
            16: (39.5, 97.9, 126.4),
            32: (12.6, 63.0, 123.2),
        },
    ),
    Model(
        "ResNet-50",
        25_600_000,
        256,
        52.9,
        {
            4: (39.0, 37.7, 39.8),
            8: (37.0, 35.7, 39.7),
            16: (23.2, 34.5, 39.1),
            32: (10.7, 30.6, 39.1),
        },
    ),
    Model(
        "AlexNet",
        61_000_000,
        64,
        173.5,
        {
            4: (14.0, 14.2, 16.5),
            8: (12.1, 13.9, 16.4),
            16: (4.9, 13.4, 16.4),
            32: (1.23, 9.24, 15.78),
        },
    ),
    Model(
        "LSTM-PTB",
        66_000_000,
        20,  # of the released configuration; that of the speed runs is not known
        392.0,
        {
            4: (12.7, 19.9, 17.8),
            8: (8.7, 18.6, 17.6),
            16: (4.1, 14.8, 15.1),
            32: (2.1, 5.4, 10.8),
        },
    ),
)
SPARDL = {"VGG-16": 14_700_000, "VGG-19": 20_100_000, "ResNet-50": 25_600_000}
LAB, SIMULATED = (4, 8), (16, 32)
METHODS = ("torch", "topk", "gtopk", "spardl")


@cache
def simulated(method: str, size: int, ranks: int, density: float) -> float:
    """Seconds of the wire for one reduction on simulated ranks, without the guard.

    The published systems have none; ours would add ceil(log2 P) times the latency.
    """
    name = "dense" if method == "torch" else method
    scale = scale_of(size, ranks, density)
    link = Link(LINK.latency, LINK.bandwidth / scale)
    reducer = catalog.reducer(name, density=density, on_nonfinite="unchecked")
    short = size // scale

    def work(group: SimulatedGroup) -> float:
        grad = torch.empty(short)
        Gradients(short, group.rank).fill_(grad)
        reducer.reduce_([grad], group, reducer.init(Layout.flat(short)))
        return group.now()

    return max(simulate(ranks, work, link=link))


def scale_of(size: int, ranks: int, density: float) -> int:
    wanted = -(-size * ranks * PER_ELEMENT // int(MEMORY))
    return max(1, min(wanted, int(size * density / LONG)))


def lab_cells(args: argparse.Namespace, console: Console) -> dict[Any, dict[str, Any]]:
    """Figures by (size, ranks): from the file, else measured now."""
    lines = args.file.read_text().splitlines() if args.file.exists() else []
    every = {(c["size"], c["ranks"]): c for c in map(json.loads, lines)}
    if args.simulated:
        return every
    for model in chosen(args):
        for ranks in LAB:
            if (model.size, ranks) in every:
                continue
            console.print(f"{model.name}, {ranks} ranks in the lab", highlight=False)
            every[model.size, ranks] = measure(model, ranks, args, console)
            with args.file.open("a") as file:
                file.write(json.dumps(every[model.size, ranks]) + "\n")
    return every


def measure(
    model: Model, ranks: int, args: argparse.Namespace, console: Console
) -> dict[str, Any]:
    where = place(ranks, "1gbit")
    if where.kind != "lab":
        raise LabError(f"no lab can be built here: {where.why}; or give --simulated")
    settings = Settings(
        size=model.size,
        density=0.001,
        methods=METHODS[1:],
        repeats=args.repeats,
        seconds=args.seconds,
        place=where.network,
        rate=where.bits,
    )
    found = run(where, "reduce", asdict(settings), console)
    assert found is not None
    return found


def chosen(args: argparse.Namespace) -> list[Model]:
    return [
        m for m in GTOPK if args.models == "all" or m.name in args.models.split(",")
    ]


def seconds_of(
    model: Model, ranks: int, cells: dict[Any, dict[str, Any]]
) -> tuple[str, dict[str, float]] | None:
    """How it was found, and what a reduction takes by method."""
    if ranks in LAB:
        cell = cells.get((model.size, ranks))
        if cell is None:
            return None
        return "lab", {row["method"]: row["seconds"] for row in cell["rows"]}
    cell = cells.get((model.size, LAB[-1]))
    cpu = {row["method"]: row["cpu"] for row in cell["rows"]} if cell else {}
    how = "simulated + cpu" if cell else "simulated"
    return how, {
        method: cpu.get(method, 0.0) + simulated(method, model.size, ranks, 0.001)
        for method in METHODS
    }


def show_gtopk(models: Sequence[Model], cells: dict[Any, dict[str, Any]]) -> None:
    print(
        "\ngTop-k's comparison: efficiencies of dense / top-k / gTop-k, and SparDL's;"
    )
    print("ratios of efficiencies, gTop-k's to dense's and to top-k's\n")
    heads = ("model", "P", "how", "ms of a reduction", "efficiency %", "SparDL %")
    heads += ("to dense", "published", "to top-k", "published")
    print(f"| {' | '.join(heads)} |")
    print("|" + " --- |" * len(heads))
    for model in models:
        for ranks in (*LAB, *SIMULATED):
            found = seconds_of(model, ranks, cells)
            if found is not None:
                print(gtopk_line(model, ranks, *found))


def gtopk_line(model: Model, ranks: int, how: str, seconds: dict[str, float]) -> str:
    shares = {name: model.efficiency(each) for name, each in seconds.items()}
    three = [shares[name] for name in METHODS[:3]]
    dense, topk, gtopk = model.by_ranks[ranks]
    texts = (
        model.name,
        str(ranks),
        how,
        " / ".join(f"{1e3 * seconds[name]:.1f}" for name in METHODS),
        " / ".join(f"{100 * each:.1f}" for each in three),
        f"{100 * shares['spardl']:.1f}",
        f"{three[2] / three[0]:.2f}",
        f"{gtopk / dense:.2f}",
        f"{three[2] / three[1]:.2f}",
        f"{gtopk / topk:.2f}",
    )
    return f"| {' | '.join(texts)} |"


def show_spardl(sizes: dict[str, int]) -> None:
    print("\nSparDL's comparison at 1 %, ms of the wire, simulated\n")
    print("| model | P | top-k | gTop-k | SparDL | to top-k | to gTop-k |")
    print("|" + " --- |" * 7)
    for name, size in sizes.items():
        for ranks in (5, 8, 11, 14):
            times = [simulated(m, size, ranks, 0.01) for m in METHODS[1:]]
            texts = [f"{1e3 * each:.1f}" for each in times]
            texts += [f"{each / times[2]:.2f}x" for each in times[:2]]
            print(f"| {name} | {ranks} | {' | '.join(texts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", type=Path, default=Path("published.jsonl"))
    parser.add_argument("--models", default="all", help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--simulated", action="store_true", help="no lab")
    args = parser.parse_args()
    cells = lab_cells(args, Console(stderr=True))
    print(machine())
    print(f"links: {8 * LINK.bandwidth / 1e9:g} Gbit/s, {1e6 * LINK.latency:.0f} us")
    show_gtopk(chosen(args), cells)
    names = {m.name for m in chosen(args)} if args.models != "all" else set(SPARDL)
    sizes = {name: size for name, size in SPARDL.items() if name in names}
    if sizes:
        show_spardl(sizes)


if __name__ == "__main__":
    main()
