"""Extraction: candidates leave the vector for lists in the dense pass.

An element is in the cache when it is accumulated, but no longer when it is selected.
Reading and writing the selected elements later took half as long as the dense pass. So
the dense pass moves candidates to lists. The vector keeps what it would keep if they
were taken: zero, or the rounding error. Only candidates that are not taken, or that
were added to, are written again.

The lists are in two flat arrays, indices and values. The vector is divided into parts,
one for each thread. A row of `begins` and `ends` belongs to a part, and columns 2b and
2b + 1 to block b: the lists of the part's first and second half. In the order of rows
and columns a block's indices ascend.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from thinwire.kernels.cpu import extract, extracted
from thinwire.kernels.cpu.arrays import (
    Before,
    Bits,
    Counts,
    Entries,
    Floats,
    Lists,
    Octets,
    Place,
)
from thinwire.kernels.cpu.elements import check_inside, write_entries
from thinwire.kernels.cpu.search import Found, scratch_for
from thinwire.kernels.cpu.select import TALLIES, scratch_counts
from thinwire.kernels.cpu.threads import make, parts_of, threads_for

# Lists have space for this many times what they are expected to hold, and some more:
# for twice as many as are selected, where thresholds are as close as they get.
_SPACE = 1.75
_MORE = 4096
_WORD = 64


_NONE = np.empty(0, np.uint8)
_ALL = np.empty((0, 2), np.int64)


class Extracted(NamedTuple):
    """The extracted elements of one block.

    `counts` are their `tally` by row and block. `changed` marks the entries that were
    added to; it is empty if there are none, else the tally is still to be made.
    """

    lists: Lists
    number: int
    sizes: Bits
    counts: Counts
    changed: Octets = _NONE

    @property
    def size(self) -> int:
        """How many elements are extracted."""
        return sum(self.sizes[:, self.number].tolist())

    def restore_(self, place: Place) -> None:
        """Write all entries back to the block."""
        where, held, begins, ends = self.lists
        for row in range(len(begins)):
            for column in (2 * self.number, 2 * self.number + 1):
                span = slice(begins[row, column], ends[row, column])
                write_entries(place, where[span], held[span])

    def add(self, place: Place, added: Entries) -> "Extracted":
        """The block with entries added, as one list."""
        size = self.size + len(added[0])
        merged = np.empty(size, self.lists[0].dtype), np.empty(size, np.float32)
        changed = np.empty(size, np.uint8)
        given = (self.lists, self.number, self.changed, added, merged, changed)
        size = extracted.add_to_extracted(place, *given)
        check_inside(size >= 0, place)
        lists = (*merged, np.array([[0, size]]), np.array([[size, size]]))
        counts = np.empty((1, 1, TALLIES), np.int32)
        return Extracted(lists, 0, np.array([[size]]), counts, changed)

    def take(
        self,
        place: Place,
        aim: tuple[int, int, int],
        out: Entries,
        *,
        bf16: bool,
        threads: int,
    ) -> Found:
        """Write the largest entries to `out` and the others back to the block.

        `aim` is (k, goal, threshold). If fewer than k entries reach the threshold,
        nothing is done.
        """
        lists, number, size = self.lists, self.number, self.size
        where, held, begins, _ = lists
        if len(self.changed) > 0:
            extracted.tally_extracted(held, size, aim[2], self.counts[0])
        shares = np.empty((len(begins), 2), np.int64) if threads > 1 else _ALL
        scratch = (scratch_counts(), scratch_for(size, where.dtype)[1])
        given = (lists, number, self.counts, aim, scratch, shares)
        *result, ties = extracted.kth_extracted(*given)
        found = Found(*result)
        if found.reaching < aim[0]:
            return found

        def run(first: int, end: int, ties: int, chosen: Entries) -> None:
            given = ((first, end), self.changed, found.kth, ties, bf16, chosen)
            rest = scratch_for(size, where.dtype)
            extracted.take_extracted(place, lists, number, *given, rest)

        if threads < 2:
            run(0, len(begins), ties, out)
            return found
        calls, start = [], 0
        for row, (share, tied) in enumerate(shares.tolist()):
            part = slice(start, start + share)
            calls.append(partial(run, row, row + 1, tied, (out[0][part], out[1][part])))
            start += share
        make(calls, threads)
        return found


class Extraction(NamedTuple):
    """Memory for the lists of all blocks, kept from step to step.

    Fresh memory costs a page fault every 4 kB.
    """

    threads: int
    space: list[int]
    lists: Lists
    limits: Bits
    sums: tuple[Bits, Counts]
    spans: list[tuple[int, int, int]]
    blocks: list[Extracted]

    @classmethod
    def make(cls, size: int, chunk: int, space: Sequence[int]) -> "Extraction":
        """For a vector of `size` elements; each list has its block's `space`.

        `chunk` is how blocks are interleaved, 0 if they are contiguous.
        """
        space = [most + most // 4 for most in space]  # it may grow by small steps
        step = chunk or _WORD  # both halves of a part then advance in step
        parts = parts_of(0, size, boundary=lambda p: p - p % step)
        # The last columns keep what two threads write on separate cache lines.
        columns = [most for most in space for _ in range(2)] + 8 * [0]
        limits = np.tile(columns, len(parts)).cumsum().reshape(len(parts), -1)
        begins, ends = limits - np.array(columns), np.empty_like(limits)
        sizes = np.empty((len(parts), len(space)), np.int64)
        counts = np.empty((len(parts), len(space), TALLIES), np.int32)
        wide = torch.int32 if size < 2**31 else torch.int64
        # By torch: NumPy allocates multiples of 2 MB, which are touched as a whole.
        where = torch.empty(int(limits[-1, -1]), dtype=wide).numpy()
        held = torch.empty(len(where), dtype=torch.float32).numpy()
        spans = [(a, a + (b - a) // (2 * step) * step, b) for a, b in parts]
        lists, sums = (where, held, begins, ends), (sizes, counts)
        blocks = [Extracted(lists, number, *sums) for number in range(len(space))]
        return cls(threads_for(size), space, lists, limits, sums, spans, blocks)

    def suits(self, threads: int, space: Sequence[int]) -> bool:
        """Whether there is enough space, and not far too much."""
        return threads == self.threads and all(
            have // 4 <= most <= have
            for most, have in zip(space, self.space, strict=True)
        )

    def accumulate_(
        self,
        layout: tuple[Bits, Counts, int],
        x: Floats,
        grad: NDArray[Any],
        scale: float,
        before: Before,
        *,
        bf16: bool,
    ) -> list[int]:
        """`x = x * scale + grad; grad = 0`, and fill `blocks` with candidates.

        Returns the blocks for which there was not enough space: they lack candidates,
        and must be restored.
        """
        closed: list[int] = []
        vectors = (x, grad, scale, before)

        def run(row: int) -> None:
            given = (layout, self.lists, self.limits, self.sums, row, bf16)
            span = self.spans[row]
            if extract.accumulate_and_extract(*given, *vectors, span):
                closed.append(row)

        rows = range(len(self.spans))
        make([partial(run, row) for row in rows], self.threads)
        return np.flatnonzero((self.sums[0] < 0).any(0)).tolist() if closed else []


def space_for(goal: int, length: int) -> int:
    """Elements of a list for a block in which `goal` candidates are expected."""
    return min(int(_SPACE * goal) + _MORE, length) + _WORD
