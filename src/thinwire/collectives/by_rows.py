"""What collectives have in common that reduce rows: a few neighbours at a time.

A row is `width` consecutive elements: one, a block of them, or a row of the model's
matrices. Ranks offer their largest rows; a collective adds up the rows that any of them
offers. A naturally sparse gradient is the same without a choice: its rows are listed.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, Protocol, Self, get_args

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives.collective import (
    Room,
    State,
    Steady,
    Total,
    check_density,
    check_whole,
)
from thinwire.errors import ConfigError
from thinwire.kernels import Block, index_dtype
from thinwire.layout import Layout
from thinwire.rows import Rows
from thinwire.sparse import SparseVector, keep_count

Granularity = Literal["element", "block", "row"]


class RowCollective(Protocol):
    """Adds up naturally sparse gradients, for which there is no `x`."""

    def sum_rows(self, mine: Rows, channel: Channel, state: State) -> Rows:
        """The sum of every rank's rows, the same bits on every rank."""
        ...


class Held(Protocol):
    """What this rank has, by row."""

    @property
    def ids(self) -> Tensor:
        """The rows that this rank offers, ascending."""
        ...

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    @property
    def width(self) -> int:
        """Elements of a row."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether what is not delivered now will be offered again."""
        ...

    def at(self, ids: Tensor) -> Tensor:
        """The values of these rows, offered or not; a copy of shape (rows, width)."""
        ...

    def remove(self, ids: Tensor, values: Tensor) -> None:
        """Take out what will be delivered."""
        ...

    def clear(self, ids: Tensor) -> None:
        """Take out all there is, also what is not a number: no difference is zero."""
        ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows of an accumulated gradient `x`; the last one may be short."""

    x: Accumulator
    ids: Tensor
    width: int

    @property
    def count(self) -> int:
        """How many rows there are."""
        return -(-self.x.size // self.width)

    @property
    def remembers(self) -> bool:
        """It stays in `x`."""
        return True

    def at(self, ids: Tensor) -> Tensor:
        values = self.x.gather(self._elements(ids))
        missing = len(ids) * self.width - len(values)
        if missing:
            values = torch.cat([values, values.new_zeros(missing)])
        return values.view(len(ids), self.width)

    def remove(self, ids: Tensor, values: Tensor) -> None:
        places = self._elements(ids)
        self.x.subtract_(places, values.view(-1)[: len(places)])

    def clear(self, ids: Tensor) -> None:
        self.x.clear_(self._elements(ids))

    def vector(self, rows: Rows) -> SparseVector:
        """Rows as a list of elements."""
        places = self._elements(rows.ids)
        values = rows.values.view(-1)[: len(places)]
        return SparseVector(places, values, self.x.size)

    def _elements(self, ids: Tensor) -> Tensor:
        if self.width == 1:
            return ids
        size = self.x.size
        lanes = torch.arange(self.width, dtype=index_dtype(size), device=ids.device)
        places = (ids.to(lanes.dtype)[:, None] * self.width + lanes).view(-1)
        beyond = int(ids[-1] + 1) * self.width - size if len(ids) else 0
        return places[: len(places) - max(beyond, 0)]


@dataclass(frozen=True, slots=True)
class Listed:
    """The rows of a naturally sparse gradient, of which nothing is remembered."""

    rows: Rows

    @property
    def ids(self) -> Tensor:
        """All that are listed."""
        return self.rows.ids

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.rows.count

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.rows.width

    @property
    def remembers(self) -> bool:
        """There is no `x`."""
        return False

    def at(self, ids: Tensor) -> Tensor:
        return self.rows.at(ids)

    def remove(self, ids: Tensor, values: Tensor) -> None:
        return None

    def clear(self, ids: Tensor) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ByRows(Steady, ABC):
    """A collective that offers the `density` of rows with the largest |v| in them.

    `granularity` says what a row is: an "element", a "block" of `width` elements (the
    last one may be short), or a "row", as long as the greatest common divisor of the
    last dimensions of the layout's pieces, so that none crosses from one into another.
    Rows that are all zero are never offered: a density of 1 offers just the others.
    """

    density: float = 0.01
    granularity: Granularity = "element"
    width: int = 64

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.granularity not in get_args(Granularity):
            choices = " or ".join(map(repr, get_args(Granularity)))
            raise ConfigError(f"granularity is {self.granularity!r}: choose {choices}")
        remedy = "give the elements of a block, a whole number from 1 on"
        check_whole("width", self.width, remedy)

    @abstractmethod
    def sum_held(self, held: Held, channel: Channel, state: State) -> Rows:
        """The sum over at least two ranks of the rows that any of them offers."""

    @property
    def coded(self) -> bool:
        return False

    def with_density(self, density: float) -> Self:
        return replace(self, density=density)

    def check(self, ranks: int) -> None:
        return None

    def init(self, layout: Layout) -> State:
        return State(width=self._width_in(layout))

    def all_reduce_(
        self, x: Accumulator, channel: Channel, state: State, out: Room
    ) -> Total:
        x.set_blocks((Block.whole(x.size),))
        count = -(-x.size // state.width)
        least = self.least(count, channel.size, state)
        held = Matrix(x, self._offered(x, state.width, least), state.width)
        return held.vector(self._sum(held, channel, state))

    def sum_rows(self, mine: Rows, channel: Channel, state: State) -> Rows:
        """The sum of every rank's rows, whatever the density."""
        return self._sum(Listed(mine), channel, state)

    def least(self, count: int, ranks: int, state: State) -> float:
        """Below this, a magnitude in one of `count` rows is not worth offering.

        Where a rank has nothing else, it offers that all the same.
        """
        return 0.0

    def _sum(self, held: Held, channel: Channel, state: State) -> Rows:
        if channel.size == 1 or held.count == 0:
            return give_all(held)
        return self.sum_held(held, channel, state)

    def _width_in(self, layout: Layout) -> int:
        if self.granularity == "row":
            lasts = (shape[-1] if shape else 1 for shape in layout.shapes)
            return max(1, gcd(*lasts))
        return 1 if self.granularity == "element" else self.width

    def _card_width(self) -> int:
        if self.granularity == "row":
            raise ConfigError(
                "how long a row is depends on the model's layout: the cost by rows can "
                "be counted, not stated in advance"
            )
        return 1 if self.granularity == "element" else self.width

    def _offered(self, x: Accumulator, width: int, least: float = 0.0) -> Tensor:
        """The rows with the largest |v| in them, as many as the density says."""
        if self.density == 1.0:
            peaks = x.whole() if width == 1 else kernels.row_peaks(x.whole(), width)
            worth = kernels.at_least(peaks, least)
            return worth if len(worth) or not least else kernels.at_least(peaks, 0.0)
        k = keep_count(-(-x.size // width), self.density)
        if width == 1:
            ((indices, values),) = x.select([k])
        else:
            indices, values = kernels.select(kernels.row_peaks(x.whole(), width), k)
        worth = kernels.at_least(values, least)
        if least and len(worth) == 0:
            worth = kernels.at_least(values, 0.0)
        return indices if len(worth) == k else indices[worth]


def give_all(held: Held) -> Rows:
    """All that this rank offers, removed."""
    values = held.at(held.ids)
    held.clear(held.ids)
    return Rows(held.ids, values, held.count)
