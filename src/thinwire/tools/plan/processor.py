"""Processor seconds of a reduction, as a linear fit of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from thinwire.sparse import keep_count
from thinwire.tools.plan.choice import Choice

Line = tuple[float, ...]
"""A number for each of `features`."""


def features(choice: Choice, size: int, ranks: int) -> Line:
    """What the processor time of a reduction depends on.

    A call; elements, which are accumulated; those of them that are kept, which are
    selected; bytes, which are encoded and decoded; lists, however short.
    """
    cost = choice.cost(size, ranks)
    kept = 0 if choice.density is None else keep_count(size, choice.density)
    return 1, size, kept, cost.nbytes + cost.awaited, choice.lists(size, ranks)


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured reduction: seconds of a rank on average, and of the busiest."""

    features: Line
    mean: float
    busiest: float


@dataclass(frozen=True, slots=True)
class Speed:
    """A method's processor time outside of the group, for any size and any ranks."""

    mean: Line
    busiest: Line

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Speed":
        """The best fit of samples."""
        table = np.array([sample.features for sample in samples])
        return cls(
            fitted(table, np.array([sample.mean for sample in samples])),
            fitted(table, np.array([sample.busiest for sample in samples])),
        )

    def seconds(self, seen: Line, share: float) -> float:
        """Seconds with `share` ranks for each core, at least the busiest rank's."""
        mean, busiest = np.dot(self.mean, seen), np.dot(self.busiest, seen)
        return float(max(busiest, share * mean))


def fitted(table: NDArray[np.float64], times: NDArray[np.float64]) -> Line:
    """Factors of the columns, none negative, with the least relative error.

    >>> table = np.array([[1.0, 10, 2], [1, 20, 1], [1, 40, 0], [1, 5, 5]])
    >>> [round(factor, 6) for factor in fitted(table, table @ [0.5, 2, 0])]
    [0.5, 2.0, 0.0]
    """
    # So few columns that all subsets of them can be tried: the best one that needs no
    # negative factor is the solution of the problem with bounds.
    weighted, ones = table / times[:, None], np.ones(len(times))
    columns = range(table.shape[1])
    best, least = np.zeros(len(columns)), float("inf")
    for count in columns:
        for chosen in combinations(columns, count + 1):
            found = np.linalg.lstsq(weighted[:, chosen], ones, rcond=None)[0]
            error = float(np.sum((weighted[:, chosen] @ found - ones) ** 2))
            if (found >= 0).all() and error < least:
                least, best = error, np.zeros(len(columns))
                best[list(chosen)] = found
    return tuple(best.tolist())
