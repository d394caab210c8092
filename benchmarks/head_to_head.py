"""Our methods, dense, bf16 and PowerSGD in the lab: every cell of one large table.

    sudo .venv/bin/python benchmarks/head_to_head.py --file head_to_head.jsonl

Needs a lab, and a machine with nothing else to do. Each cell is one `thinwire bench
reduce` in a lab of its own; its figures are a line of the file. Cells that are in the
file are not run again, so that a run can be stopped and gone on with. `--print` shows
the tables of what is there. All 24 cells take hours; `--sizes`, `--ranks`, `--rates`
and `--densities` choose some. `--burst 64000` shapes links with larger token buckets
than the lab's own: that takes less of the processors that all ranks share, and lets the
beginning of each message through unshaped. Its cells belong into a file of their own.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from thinwire.errors import LabError
from thinwire.tools.bench.reduce import Settings
from thinwire.tools.bench.torch_methods import DENSE
from thinwire.tools.cli.formatting import count, nbytes
from thinwire.tools.cli.launch import place, run
from thinwire.tools.lab.shaping import Shape, parse_rate, rate_name
from thinwire.tools.quantities import parse_count
from thinwire.tools.report import files

METHODS = "topk,gtopk,spardl,gs-sgd,union,s2"
PEERS = "torch-bf16,powersgd-1,powersgd-2,powersgd-4"

Cell = tuple[int, int, int, float]
"""Elements, ranks, bits per second, density."""


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    sizes = [parse_count(each, "size") for each in args.sizes.split(",")]
    rates = [parse_rate(each) for each in args.rates.split(",")]
    ranks = [int(each) for each in args.ranks.split(",")]
    densities = [float(each) for each in args.densities.split(",")]
    # Quick ones first.
    yield from product(sorted(sizes), ranks, sorted(rates, reverse=True), densities)


def cell_of(figures: dict[str, Any]) -> Cell:
    keys = ("size", "ranks", "rate", "density")
    return tuple(figures[key] for key in keys)  # type: ignore[return-value]


def known(file: Path) -> dict[Cell, dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    every = [json.loads(line) for line in lines]
    return {cell_of(each): each for each in every}


def measure(cell: Cell, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    size, ranks, rate, density = cell
    where = place(ranks, rate_name(rate))
    if where.kind != "lab":
        raise LabError(f"no lab can be built here: {where.why}")
    settings = Settings(
        size=size,
        density=density,
        methods=args.methods.split(","),
        peers=args.peers.split(","),
        repeats=args.repeats,
        seconds=args.seconds,
        place=where.network,
        rate=where.bits,
    )
    with shaped(args.burst):
        found = run(where, "reduce", asdict(settings), console)
    assert found is not None
    return files.compact({files.KIND: "reduce", "version": files.VERSION, **found})


@contextmanager
def shaped(burst: int | None) -> Iterator[None]:
    """Shape links with token buckets of `burst` bytes, or the lab's own."""
    if burst is None:
        yield
        return
    segments = min(burst, 65_536)  # as the kernel makes them
    with patch.object(Shape, "burst", burst), patch.object(Shape, "segments", segments):
        yield


def show(every: dict[Cell, dict[str, Any]]) -> None:
    for size, density in sorted({(cell[0], cell[3]) for cell in every}):
        chosen = {
            cell: every[cell]
            for cell in sorted(every, key=lambda cell: (-cell[2], cell[1]))
            if (cell[0], cell[3]) == (size, density)
        }
        first = next(iter(chosen.values()))
        print(
            f"\n{count(size)} elements, density {100 * density:g} %; {first['machine']}"
        )
        print("\nMilliseconds, quartiles, and times faster than dense:\n")
        table(chosen, time_cell)
        print("\nMB on the wire from the busiest rank, and times the floor:\n")
        table(chosen, wire_cell)
    targets(every)


def table(chosen: dict[Cell, dict[str, Any]], cell_text: Any) -> None:
    heads = [f"{rate_name(cell[2])} P = {cell[1]}" for cell in chosen]
    print(f"| method | {' | '.join(heads)} |")
    print("| --- |" + " --- |" * len(heads))
    labels = dict.fromkeys(
        row["label"] for figures in chosen.values() for row in figures["rows"]
    )
    for label in labels:
        texts = [cell_text(figures, label) for figures in chosen.values()]
        print(f"| {label} | {' | '.join(texts)} |")


def row_of(figures: dict[str, Any], label: str) -> dict[str, Any] | None:
    return next((row for row in figures["rows"] if row["label"] == label), None)


def time_cell(figures: dict[str, Any], label: str) -> str:
    row, dense = row_of(figures, label), row_of(figures, DENSE)
    if row is None or dense is None:
        return "-"
    low, middle, high = (1e3 * row[key] for key in ("low", "seconds", "high"))
    times = dense["seconds"] / row["seconds"]
    return f"{middle:.1f} ({low:.1f}-{high:.1f}), {times:.2g}x"


def wire_cell(figures: dict[str, Any], label: str) -> str:
    row = row_of(figures, label)
    if row is None or row["wire"] is None:
        return "-"
    return f"{nbytes(row['wire'])}, {row['wire'] / figures['floor']:.2f}"


def targets(every: dict[Cell, dict[str, Any]]) -> None:
    """SparDL against PowerSGD and the floor, cell by cell."""
    print("\nSparDL: times as fast as dense and PowerSGD's best; bytes / floor\n")
    print("| elements | link | P | density | dense | PowerSGD | floor |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for cell, figures in sorted(every.items()):
        spardl, dense = row_of(figures, "spardl"), row_of(figures, DENSE)
        powers = [r for r in figures["rows"] if r["method"].startswith("powersgd")]
        if spardl is None or dense is None or not powers:
            continue
        best = min(row["seconds"] for row in powers)
        size, ranks, rate, density = cell
        print(
            f"| {count(size)} | {rate_name(rate)} | {ranks} | {100 * density:g} % "
            f"| {dense['seconds'] / spardl['seconds']:.1f} "
            f"| {best / spardl['seconds']:.1f} "
            f"| {(spardl['wire'] or 0) / figures['floor']:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", type=Path, default=Path("head_to_head.jsonl"))
    parser.add_argument("--burst", type=int, help="bytes of a token bucket")
    parser.add_argument("--sizes", default="1e6,14.7e6")
    parser.add_argument("--ranks", default="4,6,8")
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--densities", default="0.01,0.001")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--peers", default=PEERS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--print", action="store_true", help="measure nothing")
    args = parser.parse_args()
    every = known(args.file)
    console = Console(stderr=True)
    left = [] if args.print else [cell for cell in cells(args) if cell not in every]
    for done, cell in enumerate(left, 1):
        console.print(f"cell {done} of {len(left)}: {cell}", highlight=False)
        every[cell] = measure(cell, args, console)
        with args.file.open("a") as file:
            file.write(json.dumps(every[cell]) + "\n")
    if every:
        show(every)


if __name__ == "__main__":
    main()
