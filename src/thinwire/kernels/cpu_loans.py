"""What selection will look at leaves the vector for lists while it is at hand.

An element that is likely to be sent is in the cache when it is accumulated, and cold
when it is selected: to fetch it then, and to write it back without what was sent, took
as long as half of the dense pass. So the dense pass takes candidates out. What stays of
them in the vector is what would if they were sent: nothing, or what rounding takes off.
Only those that are not selected, or were added to meanwhile, are written again.

`Marker` says what is promised by whoever lets a backend lend.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from thinwire.kernels import cpu_dense, cpu_lent, cpu_lists, cpu_select
from thinwire.kernels.cpu_search import Found, Place, goal_of, next_threshold
from thinwire.kernels.cpu_threads import share_out
from thinwire.kernels.marker import Marker

# Lists have room for this many times what they are expected to hold, and a few more:
# for twice as many as are selected, where hints are as close as they get.
_ROOM = 1.75
_MORE = 4096
_WORD = 64
# Of a block that is denser than one in so many, lists would be as long as the block.
_DENSEST = 32

_Floats = NDArray[np.float32]
_NONE = np.empty(0, np.uint8)


class Loan(NamedTuple):
    """A block's lent elements, ascending, and which of them were added to since."""

    where: NDArray[Any]
    held: _Floats
    changed: NDArray[np.uint8] = _NONE


class Part(NamedTuple):
    """What one thread lists: two lists for each block, and how far they are filled."""

    fills: NDArray[np.int64]
    where: NDArray[Any]
    held: _Floats


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
    # Lists to write into, by where a thread's part of the vector begins.
    rooms: dict[int, Part] = field(default_factory=dict)

    def ask(self, number: int, k: int, length: int, rounding: torch.dtype) -> None:
        """Take note of what a block was asked for."""
        if rounding != self.asked_rounding:
            self.asked.clear()
            self.asked_rounding = rounding
        if 0 < k * _DENSEST <= length:
            self.asked[number] = k
        else:
            self.asked.pop(number, None)

    def ready(self, marker: Marker) -> bool:
        """Whether accumulating the whole vector, which is covered, can lend it."""
        return len(self.asked) == len(marker.blocks) and all(marker.valid)

    def lend(
        self, x: _Floats, grad: NDArray[Any], scale: np.float32, marker: Marker
    ) -> list[int]:
        """Accumulate, and take candidates out of `x`.

        Answers with the blocks that have more of them than was to be expected: theirs
        are to be given back.
        """
        sizes = []
        for b, block in enumerate(marker.blocks):
            goal = goal_of(self.asked[b], marker.slack[b], block.length)
            sizes += 2 * [min(int(_ROOM * goal) + _MORE, block.length) + _WORD]
        ends = np.fromiter(accumulate(sizes), np.int64)
        begins = ends - sizes
        starts = marker.starts.numpy()
        thresholds = np.array(marker.thresholds, np.float32).view(np.int32)
        parts: dict[int, Part] = {}
        self.rounding = self.asked_rounding

        def run(low: int, high: int) -> None:
            part = parts[low] = self._room(low, int(ends[-1]), x)
            part.fills[:] = begins
            middle = low + (high - low) // (2 * _WORD) * _WORD
            lists = (ends, *part, int(self.rounding == torch.bfloat16))
            given = (x, grad, scale, low, middle, high)
            cpu_dense.accumulate_and_lend(
                starts, thresholds, marker.chunk, *lists, *given
            )

        share_out(run, 0, len(x), boundary=lambda position: position)
        marker.forget()  # there are lists, and no marks
        inorder = [parts[low] for low in sorted(parts)]
        return [
            b
            for b in range(len(marker.blocks))
            if not self._join(b, inorder, begins.tolist())
        ]

    def _join(self, b: int, parts: Iterable[Part], begins: list[int]) -> bool:
        """A block's loan from all its lists; False if one of them was too short."""
        where, held, full = [], [], False
        for part in parts:
            for i in (2 * b, 2 * b + 1):
                fill = int(part.fills[i])
                full = full or fill < 0
                end = fill if fill >= 0 else -1 - fill
                where.append(part.where[begins[i] : end])
                held.append(part.held[begins[i] : end])
        self.loans[b] = Loan(np.concatenate(where), np.concatenate(held))
        return not full

    def _room(self, low: int, size: int, x: _Floats) -> Part:
        """Kept, because fresh memory costs a fault every 4 kB."""
        room = self.rooms.get(low)
        lists = 2 * len(self.asked)
        if room is None or len(room.where) < size or len(room.fills) != lists:
            wide = np.int32 if len(x) < 2**31 else np.int64
            where, held = np.empty(size, wide), np.empty(size, np.float32)
            room = self.rooms[low] = Part(np.empty(lists, np.int64), where, held)
        return room

    def add(
        self, number: int, place: Place, indices: NDArray[Any], values: _Floats
    ) -> bool:
        """Add to elements of a block that is lent; False if one lies outside."""
        loan = self.loans[number]
        size = len(loan.where) + len(indices)
        where, sums = np.empty(size, loan.where.dtype), np.empty(size, np.float32)
        changed = np.empty(size, np.uint8)
        listed = (*loan, indices, values, where, sums, changed)
        size = cpu_lent.add_to_lent(*place, *listed)
        if size < 0:
            return False
        self.loans[number] = Loan(where[:size], sums[:size], changed[:size])
        return True

    def take(
        self, number: int, place: Place, threshold: int, slack: float, out: Any
    ) -> int | None:
        """Write the largest of a block to `out`; the next threshold, or None.

        None if too few reach the threshold: the loan is then to be given back.
        """
        k = len(out[0])
        goal = goal_of(k, slack, place.length)
        brain = int(self.rounding == torch.bfloat16)
        loan = self.loans[number]
        asked = (*place[:-1], *loan, brain, threshold, goal)
        others = np.empty_like(loan.where), np.empty_like(loan.held)
        room = (cpu_select.room_for_counts(), *others)
        found = Found(*cpu_lent.choose_lent(*asked, *room, *out))
        if found.reaching < k:
            return None
        del self.loans[number]
        return next_threshold(found, k, threshold=threshold, slack=slack, goal=goal)

    def give_back(self, number: int, place: Place) -> None:
        """Put what a block has lent back into the vector."""
        loan = self.loans.pop(number)
        cpu_lists.scatter(*place, loan.where, loan.held)
