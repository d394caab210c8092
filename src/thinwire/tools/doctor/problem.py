"""A problem: what is wrong, on which ranks, and what to do about it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stops ranks or slows them down; no ranks: it is of none alone."""

    what: str
    remedy: str
    ranks: tuple[int, ...] = ()


def merged(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Those of several ranks that say the same, as one."""
    same: dict[tuple[str, str], set[int]] = {}
    for each in problems:
        same.setdefault((each.what, each.remedy), set()).update(each.ranks)
    for (what, remedy), ranks in same.items():
        yield Problem(what, remedy, tuple(sorted(ranks)))


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words.

    >>> ranges([3]), ranges([0, 1, 2, 5]), ranges([0, 1])
    ('rank 3', 'ranks 0-2, 5', 'ranks 0, 1')
    """
    every = sorted(ranks)
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(every), lambda item: item[1] - item[0])
    ]
    long = 2  # a run of two is no range
    said = [
        f"{run[0]}-{run[-1]}" if len(run) > long else ", ".join(map(str, run))
        for run in runs
    ]
    return f"rank{'s' if len(every) > 1 else ''} {', '.join(said)}"
