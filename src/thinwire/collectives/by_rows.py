"""The base class of collectives that reduce rows.

A row is `width` consecutive elements: one element, a block of them, or a row of the
model's matrices. Every rank offers its largest rows; the collective adds up the rows
that any rank offers. Ranks offer all rows of a naturally sparse gradient.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives.collective import (
    Collective,
    MakeBuffer,
    Total,
    check_choice,
    check_density,
    check_whole,
)
from thinwire.collectives.memory import CollectiveMemory, checked
from thinwire.collectives.step_summary import RowMemory
from thinwire.errors import ConfigError
from thinwire.kernels import Block, index_dtype
from thinwire.layout import Layout
from thinwire.rows import Rows
from thinwire.sparse import SparseVector, keep_count

Granularity = Literal["element", "block", "row"]


class RowCollective(Protocol):
    """Adds up naturally sparse gradients, which have no residual."""

    def sum_rows(self, mine: Rows, channel: Channel, memory: RowMemory) -> Rows:
        """The sum of every rank's rows, the same bits on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class ResidualRows:
    """The rows of an accumulator `x`; this rank offers `ids`, ascending.

    The last row may be short.
    """

    x: Accumulator
    ids: Tensor
    width: int
    # Whether the rank keeps what is not delivered.
    remembers: ClassVar = True

    @property
    def count(self) -> int:
        """The number of rows."""
        return -(-self.x.size // self.width)

    def at(self, ids: Tensor) -> Tensor:
        """The values of these rows, offered or not; a copy of shape (rows, width)."""
        values = self.x.gather(self._elements(ids))
        missing = len(ids) * self.width - len(values)
        if missing:
            values = torch.cat([values, values.new_zeros(missing)])
        return values.view(len(ids), self.width)

    def remove(self, ids: Tensor, values: Tensor) -> None:
        """Subtract values that will be delivered."""
        places = self._elements(ids)
        self.x.subtract_(places, values.view(-1)[: len(places)])

    def clear(self, ids: Tensor) -> None:
        """Set rows to zero, also where they are not finite."""
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


class GradientRows(Rows):
    """The rows of a naturally sparse gradient; the rank keeps nothing."""

    __slots__ = ()
    remembers = False

    def remove(self, ids: Tensor, values: Tensor) -> None:
        return None

    def clear(self, ids: Tensor) -> None:
        return None


RankRows = ResidualRows | GradientRows
"""The rows of one rank, and which of them it offers."""


@dataclass(frozen=True, slots=True)
class ByRows(Collective):
    """A collective that offers the `density` of rows with the largest |v| in them.

    A row is, by `granularity`, an "element", a "block" of `width` elements (the
    last one may be short), or a "row", as long as the greatest common divisor of the
    last dimensions of the layout's pieces, so that none crosses from one into another.
    Rows of zeros are never offered, so a density of 1 offers all other rows.
    """

    density: float = 0.01
    granularity: Granularity = "element"
    width: int = 64

    def __post_init__(self) -> None:
        check_density(self.density)
        check_choice("granularity", self.granularity, Granularity)
        remedy = "give the elements of a block, a whole number from 1 on"
        check_whole("width", self.width, remedy)

    @abstractmethod
    def sum_offered(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        """The sum over at least two ranks of the rows that any of them offers."""

    def init(self, layout: Layout) -> RowMemory:
        return RowMemory(width=self._width_in(layout))

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        memory = checked(memory, RowMemory)
        x.set_blocks((Block.whole(x.size),))
        count = -(-x.size // memory.width)
        least = self.least(count, channel.size, memory)
        held = ResidualRows(x, self._offered(x, memory.width, least), memory.width)
        return held.vector(self._sum(held, channel, memory))

    def sum_rows(self, mine: Rows, channel: Channel, memory: RowMemory) -> Rows:
        """The sum of the rows of all ranks, whatever the density."""
        return self._sum(
            GradientRows(mine.ids, mine.values, mine.count), channel, memory
        )

    def least(self, count: int, ranks: int, memory: RowMemory) -> float:
        """The magnitude below which rows are not offered, of `count` rows.

        A rank whose rows are all smaller offers them nevertheless.
        """
        return 0.0

    def _sum(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        if channel.size == 1 or held.count == 0:
            return take_offered(held)
        return self.sum_offered(held, channel, memory)

    def _width_in(self, layout: Layout) -> int:
        if self.granularity == "row":
            lasts = (shape[-1] if shape else 1 for shape in layout.shapes)
            return max(1, gcd(*lasts))
        return 1 if self.granularity == "element" else self.width

    def _card_width(self) -> int:
        if self.granularity == "row":
            raise ConfigError(
                "the length of a row depends on the model's layout: the cost by rows "
                "can be counted, not stated in advance"
            )
        return 1 if self.granularity == "element" else self.width

    def _offered(self, x: Accumulator, width: int, least: float = 0.0) -> Tensor:
        """The fraction `density` of the rows: those with the largest |v| in them."""
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


def take_offered(held: RankRows) -> Rows:
    """Return the rows that this rank offers, and set them to zero."""
    values = held.at(held.ids)
    held.clear(held.ids)
    return Rows(held.ids, values, held.count)
