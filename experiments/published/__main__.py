"""Comparisons that were published, replayed: gTop-k's, SparDL's, DeepReduce's.

    sudo .venv/bin/python -m experiments.published --markdown --file published.jsonl
    .venv/bin/python -m experiments.published --simulated
    .venv/bin/python -m experiments.published --papers deepreduce

gTop-k (arXiv:1901.04359) compares scaling efficiencies on 1 Gbit/s Ethernet at a
density of 0.1 %: the throughput of a worker among P, relative to one that works alone.
Here a step takes what one worker's took there (batch / its throughput) and then one
reduction, from three sources:

published   by the throughputs in the authors' plotting script; their abstract claims
            2.7 to 12 times dense and 1.1 to 1.7 times top-k.
wire        simulated on links of 1 Gbit/s and the 436 us that the authors fitted:
            nothing takes time but the wire, and gradients are not checked to be finite.
lab         P = 4 and 8: measured, with the check, while all ranks share this machine's
            processors. P = 16 and 32: the wire and a worker's processor time at P = 8.
            Nothing is added to dense, whose threads work while the wire does.

SparDL (arXiv:2304.00737) is compared with top-k and gTop-k on 5, 8, 11 and 14 ranks at
1 %: simulated, the wire alone. Its own figures could not be read; others quote "up to
4.9 times" and "up to 1.98 times" as fast as other methods.

DeepReduce (arXiv:2102.03112): `experiments.published.deepreduce` says how.

Long vectors are simulated at 1/s of their size over links of 1/s of the bandwidth. The
lab's cells are lines of the file; those that are there are not run again.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from experiments.published import deepreduce
from experiments.published.figures import GTOPK, SPARDL, Model
from thinwire import catalog
from thinwire.cost import Link, ring_all_reduce
from thinwire.errors import LabError
from thinwire.groups import SimulatedGroup, simulate
from thinwire.layout import Layout
from thinwire.sparse import keep_count
from thinwire.tools.bench.codecs import one_thread
from thinwire.tools.bench.gradients import Gradients
from thinwire.tools.bench.machine import machine
from thinwire.tools.bench.reduce import LEAST_REPEATS, Settings
from thinwire.tools.bench.torch_methods import DENSE
from thinwire.tools.cli.launch import place, run
from thinwire.tools.report import files

LINK = Link(latency=436e-6, bandwidth=125e6)
# A simulation has at most WORKABLE elements on all ranks together, but SparDL's lists,
# the shortest, keep at least SHORTEST entries: headers do not shrink, and weigh s times
# as much. SparDL takes up to 3 % longer for it, the others up to 1 %.
WORKABLE = 40_000_000
SHORTEST = 128
# Elements that are drawn in all repetitions of a cell of the lab, which takes longest.
DRAWN = 50_000_000
METHODS = (DENSE, "topk", "gtopk", "spardl")
LAB, SIMULATED = (4, 8), (16, 32)
PAPERS = ("gtopk", "spardl", "deepreduce")

Cells = dict[tuple[int, int], dict[str, Any]]
"""The lab's figures by elements and ranks."""


@cache
def wire(method: str, size: int, ranks: int, density: float) -> float:
    """Seconds of the wire for one reduction, without the guard.

    The published systems have none; ours would add ceil(log2 P) rounds of a few bytes.
    """
    if method == DENSE:  # of which a simulated group takes the time by the same formula
        return LINK.seconds(ring_all_reduce(4 * size, ranks))
    scale = scale_of(size, ranks, density)
    link = Link(LINK.latency, LINK.bandwidth / scale)
    reducer = catalog.reducer(method, density=density, on_nonfinite="unchecked")
    short = size // scale

    def work(group: SimulatedGroup) -> float:
        grad = torch.empty(short)
        Gradients(short, group.rank).fill_(grad)
        reducer.reduce_([grad], group, reducer.init(Layout.flat(short)))
        return group.now()

    return max(simulate(ranks, work, link=link))


def scale_of(size: int, ranks: int, density: float) -> int:
    shortest = keep_count(size, density) // ranks
    return max(1, min(-(-size * ranks // WORKABLE), shortest // SHORTEST))


def lab(model: Model, ranks: int, cells: Cells) -> list[float] | None:
    """Seconds by method: measured, or the wire's and the processor's; None: unknown."""
    cell = cells.get((model.size, min(ranks, LAB[-1])))
    if cell is None:
        return None
    rows = {row["method"]: row for row in cell["rows"]}
    if ranks in LAB:
        return [rows[method]["seconds"] for method in METHODS]
    wires = [wire(method, model.size, ranks, 0.001) for method in METHODS]
    return [wires[0]] + [
        seconds + rows[method]["cpu"]
        for method, seconds in zip(METHODS[1:], wires[1:], strict=True)
    ]


def known(file: Path) -> Cells:
    lines = file.read_text().splitlines() if file.exists() else []
    return {(c["size"], c["ranks"]): c for c in map(json.loads, lines)}


def measure_missing(
    models: Sequence[Model], cells: Cells, args: argparse.Namespace
) -> None:
    console = Console(stderr=True)
    for model in models:
        for ranks in LAB:
            if (model.size, ranks) in cells:
                continue
            console.print(f"{model.name}, {ranks} ranks in the lab", highlight=False)
            found = measure(model, ranks, args, console)
            cells[model.size, ranks] = found
            with args.file.open("a") as file:
                file.write(json.dumps(found) + "\n")


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
        repeats=repeats_of(model.size, args.repeats),
        seconds=args.seconds,
        place=where.network,
        rate=where.bits,
    )
    found = run(where, "reduce", asdict(settings), console)
    assert found is not None
    return files.compact({files.KIND: "reduce", "version": files.VERSION, **found})


def repeats_of(size: int, most: int) -> int:
    return max(LEAST_REPEATS, min(most, DRAWN // size))


def times_table(models: Sequence[Model], cells: Cells) -> Iterator[list[str]]:
    yield ["model", "P", "published", "wire", "lab"]
    for model in models:
        for ranks in (*LAB, *SIMULATED):
            every = sources(model, ranks, cells)
            texts = [joined(seconds, milliseconds) for seconds in every]
            yield [model.name, str(ranks), *texts]


def efficiency_table(models: Sequence[Model], cells: Cells) -> Iterator[list[str]]:
    names = ("published", "wire", "lab")
    yield ["model", "P", *names] + [
        f"to {other}, {name}" for other in ("dense", "top-k") for name in names
    ]
    for model in models:
        for ranks in (*LAB, *SIMULATED):
            shares = [
                None if seconds is None else [model.efficiency(s) for s in seconds]
                for seconds in sources(model, ranks, cells)
            ]
            texts = [joined(each, percent) for each in shares]
            texts += [ratio(each, to=0) for each in shares]
            texts += [ratio(each, to=1) for each in shares]
            yield [model.name, str(ranks), *texts]


def sources(model: Model, ranks: int, cells: Cells) -> list[list[float] | None]:
    """Seconds of dense, top-k, gTop-k and SparDL: published, wire and lab."""
    wires = [wire(method, model.size, ranks, 0.001) for method in METHODS]
    return [model.published(ranks), wires, lab(model, ranks, cells)]


def joined(figures: list[float] | None, form: Any) -> str:
    return "-" if figures is None else " / ".join(map(form, figures))


def milliseconds(seconds: float) -> str:
    """Three digits, or all before the point.

    >>> milliseconds(0.00123), milliseconds(0.0612), milliseconds(3.8)
    ('1.2', '61.2', '3,800')
    """
    return f"{1e3 * seconds:,.{1 if seconds < 0.1 else 0}f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def ratio(shares: list[float] | None, *, to: int) -> str:
    """What gTop-k's efficiency is of another's."""
    return "-" if shares is None else f"{shares[2] / shares[to]:.2f}"


def spardl_table(sizes: dict[str, int]) -> Iterator[list[str]]:
    yield ["model", "P", "top-k", "gTop-k", "SparDL", "over top-k", "over gTop-k"]
    for name, size in sizes.items():
        for ranks in (5, 8, 11, 14):
            times = [wire(method, size, ranks, 0.01) for method in METHODS[1:]]
            texts = [milliseconds(each) for each in times]
            texts += [f"{each / times[2]:.2f}" for each in times[:2]]
            yield [name, str(ranks), *texts]


def show(title: str, table: Iterator[list[str]], *, markdown: bool) -> None:
    rows = list(table)
    print(f"\n{title}:\n")
    if markdown:
        rows.insert(1, ["---"] * len(rows[0]))
        print("\n".join(f"| {' | '.join(row)} |" for row in rows), flush=True)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        print("  ".join(f"{text:>{width}}" for text, width in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.published",
        description=__doc__.partition("\n")[0],
    )
    names = [model.name for model in GTOPK]
    parser.add_argument("--papers", default=",".join(PAPERS), help="whose figures")
    parser.add_argument("--file", type=Path, default=Path("published.jsonl"))
    parser.add_argument("--models", default=",".join(names), help="gTop-k's, by name")
    parser.add_argument("--repeats", type=int, default=15, help="at most, in the lab")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a method")
    parser.add_argument("--simulated", action="store_true", help="no lab")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    papers, chosen = args.papers.split(","), args.models.split(",")
    for given, there in ((papers, PAPERS), (chosen, names)):
        if unknown := set(given) - set(there):
            text = ", ".join(sorted(unknown))
            parser.error(f"unknown: {text}; there are: {', '.join(there)}")
    models = [model for model in GTOPK if model.name in chosen]
    print(machine())
    if "gtopk" in papers:
        show_gtopk(models, args)
    if "spardl" in papers:
        title = "Ms of the wire at 1 %, and how many times as fast SparDL is"
        show(title, spardl_table(SPARDL), markdown=args.markdown)
    if "deepreduce" in papers:
        with one_thread():
            for title, table in deepreduce.TABLES:
                show(title, table(), markdown=args.markdown)


def show_gtopk(models: Sequence[Model], args: argparse.Namespace) -> None:
    cells = known(args.file)
    if not args.simulated:
        measure_missing(models, cells, args)
    print(f"links: {8 * LINK.bandwidth / 1e9:g} Gbit/s, {1e6 * LINK.latency:.0f} us")
    every = "dense / top-k / gTop-k / SparDL"
    title = f"Ms of a reduction at 0.1 %, {every}"
    show(title, times_table(models, cells), markdown=args.markdown)
    title = f"Scaling efficiency in %, {every}, and gTop-k's to dense's and top-k's"
    show(title, efficiency_table(models, cells), markdown=args.markdown)


if __name__ == "__main__":
    main()
