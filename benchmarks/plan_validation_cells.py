"""Measured cells of the validation: their file, and tables of errors."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from thinwire.cost import Rounds
from thinwire.tools.plan.processes import rounds_from

Key = tuple[str, int, str, int]


@dataclass(frozen=True)
class Cell:
    """One measured reduction: seconds of the slowest rank, processor seconds of one."""

    method: str
    ranks: int
    rate: str
    size: int
    wall: float
    least: float
    cpu: float
    steps: int

    @property
    def key(self) -> Key:
        return self.method, self.ranks, self.rate, self.size


def lines(file: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


def cells(file: Path) -> Iterator[Cell]:
    return (Cell(**line) for line in lines(file) if "rounds" not in line)


def rounds_of(file: Path) -> dict[tuple[str, int], Rounds]:
    """By rate and ranks, the last that were measured."""
    return {
        (line["rate"], line["ranks"]): rounds_from(line["rounds"])
        for line in lines(file)
        if "rounds" in line
    }


def summary(errors: dict[Key, float]) -> None:
    """By size and rate, by method, and of all: as markdown, which reads as it is."""
    groups: dict[str, list[float]] = {}
    for (method, _, rate, size), error in errors.items():
        groups.setdefault(f"{size / 1e6:g} M, {rate}", []).append(error)
        groups.setdefault(method, []).append(error)
    print("\n| cells | median error | median of its size | largest |")
    print("| --- | --- | --- | --- |")
    for name, found in sorted(groups.items()):
        sizes = [abs(error) for error in found]
        largest = max(found, key=abs)
        texts = f"{median(found):+.0%} | {median(sizes):.0%} | {largest:+.0%}"
        print(f"| {name} | {texts} |")
    sizes = [abs(error) for error in errors.values()]
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"\n{len(sizes)} cells: median error {median(sizes):.0%}, worst ", end="")
    print(f"{errors[worst]:+.0%} ({', '.join(map(str, worst))})")


def row(texts: tuple[str, ...], options: argparse.Namespace, *, head: bool = False):
    if options.markdown:
        print(f"| {' | '.join(texts)} |")
        if head:
            print(f"|{' --- |' * len(texts)}")
        return
    widths = [9, 8, 4, 22, *[10] * 9]
    print("".join(f"{t:>{w}}" for t, w in zip(texts, widths, strict=True)))
