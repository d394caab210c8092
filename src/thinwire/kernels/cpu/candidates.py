"""Candidates for selection on the CPU, marked in a bitmap or extracted into lists.

While a gradient is accumulated, every element whose magnitude reaches its block's
threshold is marked. Selection looks at marked elements only. If the whole gradient
comes in one piece and all blocks were taken from before, candidates are extracted
instead (see `extraction`).

Selection is exact for any threshold: too few candidates mean another pass over the
block. So thresholds need not be saved.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block, chunk_of
from thinwire.kernels.cpu import passes
from thinwire.kernels.cpu.accumulate import before_of, pieces_of
from thinwire.kernels.cpu.arrays import Before, array_of, place_of
from thinwire.kernels.cpu.elements import (
    NO_WORDS,
    add_entries,
    check_inside,
    replace_entries,
)
from thinwire.kernels.cpu.extraction import Extracted, Extraction, space_for
from thinwire.kernels.cpu.halves import to_bfloat16
from thinwire.kernels.cpu.search import (
    SLACK,
    UNKNOWN,
    Marks,
    goal_of,
    next_slack,
    next_threshold,
    search,
)
from thinwire.kernels.cpu.threads import make, share_out, threads_for
from thinwire.kernels.sections import Sparse

# Taking an element from a list costs as much as reading this many of a vector.
_PER_ENTRY = 40
# Where more than one element in this many is taken, lists would be too long.
_DENSEST = 32


class Candidates:
    """The candidates of a vector's blocks. See `thinwire.kernels.candidates`."""

    def __init__(self, x: Tensor, blocks: tuple[Block, ...]) -> None:
        self._x, self._blocks = array_of(x), blocks
        self._places = [place_of(x, block) for block in blocks]
        self._chunk = chunk_of(blocks)
        ends = [block.start + block.length for block in blocks]
        self._starts = np.array([0, *ends])
        # Block b has one bit per element, in `_words[b]`.
        words = [0, *accumulate(-(-block.length // 64) for block in blocks)]
        self._bitmap = np.empty(words[-1], np.int64)
        self._words = [self._bitmap[low:high] for low, high in pairwise(words)]
        self._firsts = np.array(words[:-1])
        # Bits of the magnitude from which to mark next, and from which was marked.
        self._hints = np.full(len(blocks), UNKNOWN, np.int32)
        self._thresholds = self._hints.copy()
        # The share of candidates beyond those needed that a threshold aims at.
        self._slack = [SLACK] * len(blocks)
        # The vector is marked up to here; UNKNOWN if it changed while being marked.
        self._marked = UNKNOWN
        # Blocks whose marks describe the vector.
        self._valid = [False] * len(blocks)
        # How many elements were last taken from each block, and rounded to what.
        self._taken: dict[int, int] = {}
        self._rounding = torch.float32
        self._extraction: Extraction | None = None
        self._extracted: dict[int, Extracted] = {}
        self._extracted_rounding = torch.float32

    def accumulate_(
        self,
        grad: Tensor,
        *,
        offset: int,
        scale: float,
        before: Tensor | None = None,
    ) -> None:
        if grad.numel() == 0 < len(self._x):
            return
        self._restore(list(self._extracted))
        self._valid = [False] * len(self._blocks)
        keep = before_of(before)
        for start, addend in pieces_of(grad, offset, len(self._x)):
            if len(addend) < len(self._x) or not self._extract(addend, scale, keep):
                self._mark(addend, start, np.float32(scale), keep)

    def _extract(self, addend: NDArray[Any], scale: float, before: Before) -> bool:
        """Accumulate and extract, if all blocks were taken from and have thresholds."""
        if len(self._taken) < len(self._blocks) or min(self._hints.tolist()) <= 0:
            return False
        size, space = len(self._x), []
        for b, block in enumerate(self._blocks):
            goal = goal_of(self._taken[b], self._slack[b], block.length)
            space.append(space_for(goal, block.length))
        kept = self._extraction
        if kept is None or not kept.suits(threads_for(size), space):
            kept = self._extraction = None  # release its memory before allocating
            kept = self._extraction = Extraction.make(size, self._chunk, space)
        self._thresholds[:] = self._hints
        layout = (self._starts, self._thresholds, self._chunk)
        bf16 = self._rounding == torch.bfloat16
        short = kept.accumulate_(layout, self._x, addend, scale, before, bf16=bf16)
        self._extracted = dict(enumerate(kept.blocks))
        self._extracted_rounding = self._rounding
        self._restore(short)
        return True

    def _mark(
        self, addend: NDArray[Any], start: int, scale: np.float32, before: Before
    ) -> None:
        """Accumulate and mark a piece; pieces ascend from the vector's beginning."""
        end = start + len(addend)
        if start == 0:
            self._marked = 0
            self._thresholds[:] = self._hints
        given = (self._x, start, addend, scale, before)
        if start != self._marked:
            self._marked = UNKNOWN
            add = partial(passes.accumulate, *given)
            share_out(add, start, end, boundary=lambda position: position)
            return
        layout = (self._starts, self._firsts, self._thresholds, self._chunk)

        def add_and_mark(low: int, high: int) -> None:
            span = (low, max(self._word_boundary((low + high) // 2), low), high)
            passes.accumulate_and_mark(self._bitmap, layout, *given, span)

        share_out(add_and_mark, start, end, boundary=self._word_boundary)
        self._marked = end
        if end == len(self._x):
            self._valid = [hint >= 0 for hint in self._thresholds.tolist()]

    def _word_boundary(self, position: int) -> int:
        """The last place up to `position` where no word of marks is begun."""
        if self._chunk > 0:
            return position - position % 64 if self._chunk % 64 == 0 else 0
        start = max(b.start for b in self._blocks if b.start <= position)
        return position - (position - start) % 64

    def select(
        self,
        counts: Sequence[int],
        numbers: Sequence[int],
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        found: dict[int, Sparse] = {}
        if self._extracted.keys() >= set(numbers):
            threads = threads_for(sum(counts) * _PER_ENTRY)
        else:
            threads = threads_for(sum(self._blocks[b].length for b in numbers))
        # A single block is shared by the threads; several are distributed.
        sharing = threads if len(numbers) == 1 else 1

        def run(k: int, number: int) -> None:
            taken = None
            if number in self._extracted and removing == self._extracted_rounding:
                taken = self._take_extracted(k, number, sharing)
            found[number] = taken or self._select(k, number, removing)

        wanted = list(zip(counts, numbers, strict=True))
        make([partial(run, *each) for each in wanted], threads)
        self._marked = UNKNOWN
        self._note(wanted, removing)
        return [found[number] for number in numbers]

    def _note(
        self, wanted: list[tuple[int, int]], removing: torch.dtype | None
    ) -> None:
        """Record how many were taken: the next step extracts as many."""
        if removing is not None and removing != self._rounding:
            self._taken.clear()
            self._rounding = removing
        for k, number in wanted:
            if removing and 0 < k * _DENSEST <= self._blocks[number].length:
                self._taken[number] = k
            else:
                self._taken.pop(number, None)

    def _select(self, k: int, number: int, removing: torch.dtype | None) -> Sparse:
        """Select from marked elements; without marks, from all."""
        self._restore([number])
        place = self._places[number]
        known, self._valid[number] = self._valid[number], False
        threshold = int(self._thresholds[number]) if known else UNKNOWN
        marks = Marks(self._words[number], threshold, self._slack[number])
        (indices, values), hint, missed = search(place, k, marks)
        if k > 0:
            self._hints[number] = hint
            self._slack[number] = next_slack(self._slack[number], missed=missed)
        if removing is None:
            return indices, values
        sent = values.numpy()
        if removing == torch.bfloat16:  # not by torch, which would start threads
            bits = to_bfloat16(values).view(torch.uint16).numpy()
            sent = (bits.astype(np.uint32) << 16).view(np.float32)
        # The elements were just read and are cached: they are only written.
        replace_entries(place, indices.numpy(), values.numpy(), sent)
        return indices, values

    def _take_extracted(self, k: int, number: int, threads: int) -> Sparse | None:
        """Take from extracted elements; None if too few reach the threshold."""
        place, length = self._places[number], self._blocks[number].length
        if not 0 < k <= length:
            return None
        slack, threshold = self._slack[number], int(self._thresholds[number])
        goal = goal_of(k, slack, length)
        # By NumPy: after a dense pass the code of torch is no longer in the cache.
        indices = np.empty(k, np.int32 if length < 2**31 else np.int64)
        out = (indices, np.empty(k, np.float32))
        bf16 = self._extracted_rounding == torch.bfloat16
        block, aim = self._extracted[number], (k, goal, threshold)
        found = block.take(place, aim, out, bf16=bf16, threads=threads)
        missed = found.reaching < k
        self._slack[number] = next_slack(slack, missed=missed)
        if missed:
            return None
        del self._extracted[number]
        self._hints[number] = next_threshold(
            found, k, threshold=threshold, slack=slack, goal=goal
        )
        return torch.from_numpy(out[0]), torch.from_numpy(out[1])

    def add_(self, indices: Tensor, values: Tensor, number: int) -> None:
        place, added = self._places[number], (array_of(indices), array_of(values))
        block = self._extracted.get(number)
        if block is not None:
            self._extracted[number] = block.add(place, added)
            return
        if not self._valid[number]:
            self._marked = UNKNOWN
        words = self._words[number] if self._valid[number] else NO_WORDS
        check_inside(add_entries(place, *added, np.float32(1), words), place)

    def restore_(self) -> None:
        self._restore(list(self._extracted))
        self._marked = UNKNOWN
        self._valid = [False] * len(self._blocks)

    def _restore(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            block = self._extracted.pop(number, None)
            if block is not None:
                block.restore_(self._places[number])


def new_candidates(x: Tensor, blocks: tuple[Block, ...]) -> Candidates:
    return Candidates(x, blocks)
