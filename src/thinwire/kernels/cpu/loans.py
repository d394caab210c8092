"""What selection will look at leaves the vector for lists while it is at hand.

An element that is likely to be sent is in the cache when it is accumulated, and cold
when it is selected: to fetch it then, and to write it back without what was sent, took
as long as half of the dense pass. So the dense pass takes candidates out. What stays of
them in the vector is what would if they were sent: nothing, or what rounding takes off.
Only those that are not selected, or were added to meanwhile, are written again.

`Marker` says what is promised by whoever lets a backend lend.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu import lend, lent, select
from thinwire.kernels.cpu.arrays import Place, place_of
from thinwire.kernels.cpu.elements import write_entries
from thinwire.kernels.cpu.search import (
    Found,
    goal_of,
    next_threshold,
    room_for,
)
from thinwire.kernels.cpu.threads import make, parts_of, threads_for
from thinwire.kernels.marker import Marker

# Lists have room for this many times what they are expected to hold, and a few more:
# for twice as many as are selected, where hints are as close as they get.
_ROOM = 1.75
_MORE = 4096
_WORD = 64
# Of a block that is denser than one in so many, lists would be as long as the block.
_DENSEST = 32

_Floats = NDArray[np.float32]
_Bits = NDArray[np.int64]
_NONE = np.empty(0, np.uint8)
_ALL = np.empty((0, 2), np.int64)


class Loan(NamedTuple):
    """A block's lent elements: ascending lists, two for each part of the vector.

    They are at `begins[part, 2 * number]` to `ends[part, 2 * number]` of `where` and
    `held`, and in the column beside, `sizes[part, number]` elements in both;
    `select.tally` has counted them in `counts[part, number]`. `changed` tells which
    were added to since, if any were: they are counted when they are taken.
    """

    where: NDArray[Any]
    held: _Floats
    begins: _Bits
    ends: _Bits
    number: int
    counts: NDArray[np.int32]
    sizes: _Bits
    changed: NDArray[np.uint8] = _NONE

    @property
    def size(self) -> int:
        """How many elements are lent."""
        return sum(self.sizes[:, self.number].tolist())

    def entries(self) -> tuple[NDArray[Any], _Floats]:
        """All lists as one."""
        columns = slice(2 * self.number, 2 * self.number + 2)
        begins, ends = self.begins[:, columns].flat, self.ends[:, columns].flat
        spans = [slice(*span) for span in zip(begins, ends, strict=True)]
        where = np.concatenate([self.where[span] for span in spans])
        return where, np.concatenate([self.held[span] for span in spans])


class _Lists(NamedTuple):
    """Room for the lists of all blocks, part by part, kept from step to step.

    Fresh memory would cost a fault every 4 kB; and whatever Python makes anew after a
    dense pass, it makes with cold caches.
    """

    threads: int
    room: list[int]
    sizes: _Bits
    # What the dense pass is given for each part, and what comes of it for each block.
    rows: list[tuple[Any, ...]]
    loans: list[Loan]

    @classmethod
    def make(cls, threads: int, room: list[int], marker: Marker) -> "_Lists":
        """Two lists with so much room for each block, in each part of the vector."""
        step = marker.chunk or _WORD  # both places of a part then go in step
        parts = parts_of(0, marker.size, boundary=lambda p: p - p % step)
        # Columns, and a line of the cache between what two threads write.
        columns = [most for most in room for _ in range(2)] + 8 * [0]
        limits = np.tile(columns, len(parts)).cumsum().reshape(len(parts), -1)
        begins, fills = limits - np.array(columns), np.empty_like(limits)
        sizes = np.empty((len(parts), len(room)), np.int64)
        counts = np.empty((len(parts), len(room), select.TALLIES), np.int32)
        wide = torch.int32 if marker.size < 2**31 else torch.int64
        # By torch: what NumPy allocates is a multiple of 2 MB, once it is touched.
        where = torch.empty(int(limits[-1, -1]), dtype=wide).numpy()
        held = torch.empty(len(where), dtype=torch.float32).numpy()
        rows = []
        for t, (low, high) in enumerate(parts):
            middle = low + (high - low) // (2 * step) * step
            row = (begins[t], limits[t], fills[t], sizes[t], counts[t])
            rows.append((*row, where, held, low, middle, high))
        loans = [
            Loan(where, held, begins, fills, b, counts, sizes) for b in range(len(room))
        ]
        return cls(threads, room, sizes, rows, loans)

    def suits(self, threads: int, room: list[int]) -> bool:
        """Whether there is enough room, and not far too much."""
        return threads == self.threads and all(
            have // 4 <= most <= have
            for most, have in zip(room, self.room, strict=True)
        )

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """A copy would be of rows that have nothing to do with the loans: make anew."""
        return type(None), ()


@dataclass(slots=True)
class Loans:
    """What a marker holds of a vector, by block.

    Blocks are lent once all of them were taken from: that told how many elements will
    be asked for, and to what they are rounded.
    """

    asked: dict[int, int] = field(default_factory=dict)
    asked_rounding: torch.dtype = torch.float32
    loans: dict[int, Loan] = field(default_factory=dict)
    # What the loans of today were made for: what rounding takes off has stayed.
    rounding: torch.dtype = torch.float32
    # What reached these bits was lent, by block; hints may be changed since.
    _thresholds: list[int] = field(default_factory=list)
    _lists: _Lists | None = None
    _places: list[Place] = field(default_factory=list)
    _memory: tuple[int, int] = (0, 0)

    def ask(self, number: int, k: int, length: int, rounding: torch.dtype) -> None:
        """Take note of what a block was asked for."""
        if rounding != self.asked_rounding:
            self.asked.clear()
            self.asked_rounding = rounding
        if 0 < k * _DENSEST <= length:
            self.asked[number] = k
        else:
            self.asked.pop(number, None)

    def lend(
        self, x: Tensor, grad: NDArray[Any], scale: float, marker: Marker
    ) -> list[int] | None:
        """Accumulate a whole gradient, and take candidates out of `x`.

        Answers with the blocks that have more of them than was to be expected: theirs
        are to be given back. None, and nothing done, if not all blocks were asked for
        and have hints.
        """
        thresholds = marker.hint_bits.tolist()
        if len(self.asked) < len(marker.blocks) or min(thresholds, default=0) <= 0:
            return None
        self._thresholds = thresholds
        lists = self._lists_for(marker)
        self.rounding = self.asked_rounding
        layout = (marker.starts, marker.hint_bits, marker.chunk)
        brain = int(self.rounding == torch.bfloat16)
        given = (brain, self._place(x, marker, 0).x, grad, scale)
        short: list[int] = []

        def run(t: int) -> None:
            row = lists.rows[t]
            if lend.accumulate_and_lend(*layout, *row[:-3], *given, *row[-3:]):
                short.append(t)

        make([partial(run, t) for t in range(len(lists.rows))], lists.threads)
        marker.forget()  # there are lists, and no marks
        self.loans = dict(enumerate(lists.loans))
        return np.flatnonzero((lists.sizes < 0).any(0)).tolist() if short else []

    def _lists_for(self, marker: Marker) -> _Lists:
        threads, room = threads_for(marker.size), []
        for b, block in enumerate(marker.blocks):
            goal = goal_of(self.asked[b], marker.slack[b], block.length)
            room.append(min(int(_ROOM * goal) + _MORE, block.length) + _WORD)
        if self._lists is None or not self._lists.suits(threads, room):
            self._lists = None  # the old room goes before the new one comes
            room = [most + most // 4 for most in room]  # it may grow by small steps
            self._lists = _Lists.make(threads, room, marker)
        return self._lists

    def _place(self, x: Tensor, marker: Marker, number: int) -> Place:
        """Where a block lies in `x`: found out once for all blocks and steps.

        The last vector seen is kept alive, so that its address means it and no other.
        """
        memory = (x.data_ptr(), x.numel())
        if memory != self._memory:
            self._places = [place_of(x, block) for block in marker.blocks]
            self._memory = memory
        return self._places[number]

    def add(
        self,
        number: int,
        x: Tensor,
        marker: Marker,
        indices: NDArray[Any],
        values: _Floats,
    ) -> bool:
        """Add to elements of a block that is lent; False if one lies outside."""
        loan = self.loans[number]
        size = loan.size + len(indices)
        where, sums = np.empty(size, loan.where.dtype), np.empty(size, np.float32)
        changed = np.empty(size, np.uint8)
        listed = (*loan[:5], loan.changed, indices, values)
        room = (where, sums, changed)
        size = lent.add_to_lent(*self._place(x, marker, number), *listed, *room)
        if size < 0:
            return False
        begins, ends = np.array([[0, size]]), np.array([[size, size]])
        sizes = np.array([[size]])
        counts = np.empty((1, 1, select.TALLIES), np.int32)  # when it is taken
        self.loans[number] = Loan(where, sums, begins, ends, 0, counts, sizes, changed)
        return True

    def take(
        self,
        number: int,
        x: Tensor,
        marker: Marker,
        out: tuple[NDArray[Any], _Floats],
        threads: int,
    ) -> bool:
        """Write the largest of a block to `out`, and note where to mark from next.

        False if too few reach the threshold: the loan is then to be given back.
        """
        place = self._place(x, marker, number)
        k, slack = len(out[0]), marker.slack[number]
        goal = goal_of(k, slack, place.length)
        threshold = self._thresholds[number]
        loan = self.loans[number]
        where, held, begins, ends, column, counts, _, changed = loan
        size = loan.size
        if len(changed) > 0:
            lent.tally_lent(held, size, threshold, counts[0])
        shares = np.empty((len(begins), 2), np.int64) if threads > 1 else _ALL
        members = room_for(size, where.dtype)[1]
        listed = (held, begins, ends, column, counts, k, goal, threshold)
        room = (select.room_for_counts(), members, shares)
        *answer, ties = lent.kth_lent(*listed, *room)
        found = Found(*answer)
        if found.reaching < k:
            return False
        lists = loan[:5]
        brain = int(self.rounding == torch.bfloat16)

        def run(first: int, last: int, ties: int, *chosen: NDArray[Any]) -> None:
            room = room_for(size, where.dtype)
            parts = (first, last, changed, brain, found.kth, ties)
            lent.take_lent(*place[:-1], *lists, *parts, *room, *chosen)

        if threads < 2:
            run(0, len(begins), ties, *out)
        else:
            calls, start = [], 0
            for t, (share, own) in enumerate(shares.tolist()):
                chosen = (each[start : start + share] for each in out)
                calls.append(partial(run, t, t + 1, own, *chosen))
                start += share
            make(calls, threads)
        del self.loans[number]
        aim = next_threshold(found, k, threshold=threshold, slack=slack, goal=goal)
        marker.hint_bits[number] = aim
        return True

    def give_back(self, number: int, x: Tensor, marker: Marker) -> None:
        """Put what a block has lent back into the vector."""
        place, loan = self._place(x, marker, number), self.loans.pop(number)
        write_entries(*place, *loan.entries())
