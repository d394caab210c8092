"""The figures of `thinwire bench reduce`."""

from dataclasses import dataclass
from math import log2

from thinwire.cost import Cost
from thinwire.sparse import keep_count

_VALUE_BITS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one method: seconds of the slowest rank, means of the rest."""

    label: str
    method: str
    codec: str | None
    peer: bool
    seconds: float  # the median
    low: float  # quartiles
    high: float
    walls: list[float]  # of every repetition, in order
    cpu: float  # a worker's processor time
    sent: int  # bytes counted by the method or its formula, the busiest rank
    rounds: int
    wire: int | None  # bytes that the interface sent, headers included; busiest rank
    phases: dict[str, float]
    error: float  # |delivered - mean| / |mean| with nothing remembered
    forecast: float | None  # processor time and wire, on a link that was named only


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one setting."""

    size: int
    density: float
    kept: int
    ranks: int
    hosts: int
    ranks_per_machine: int
    place: str
    rate: int | None
    floor: float  # bytes
    repeats: int
    machine: str
    date: str
    rows: list[Row]


def wire_floor(size: int, density: float, ranks: int) -> float:
    """The fewest bytes of a rank: 2 k (P - 1) / P entries of 16 bits and an index.

    An index takes the entropy of a list of this density.

    >>> round(wire_floor(14_700_000, 0.01, 8))
    774300
    """
    kept = keep_count(size, density)
    share = kept / size
    rest = (1 - share) * log2(1 - share) / share if share < 1 else 0.0
    entropy = -log2(share) - rest
    return 2 * kept * (ranks - 1) / ranks * (entropy + _VALUE_BITS) / 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One reduction on one rank."""

    wall: float
    cpu: float
    wire: int | None
    cost: Cost
    phases: dict[str, float]
