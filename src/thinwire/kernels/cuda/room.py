"""What selection on a CUDA device keeps there: lists of candidates, counts, thresholds.

All of it is scratch: no result depends on what was left in it. Sizes follow from the
blocks and from how many elements of each were selected last, so nothing is read back.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda import choose, dense_select, mark
from thinwire.kernels.cuda.launch import (
    EXACT,
    LONGEST,
    TOGETHER,
    cdiv,
    company,
    following,
)
from thinwire.kernels.cuda.partition import new_lists, row_table

Sparse = tuple[Tensor, Tensor]

# Blocks up to this length are selected from in one launch that reads them six times.
SHORT = 1 << 20
# A list has room for so much more than what is selected, by a share and a number.
SPARE, SPARE_COUNT = 0.75, 2048
# Rows of 32 neighbours that all blocks together are sampled by, and each at least.
ROWS, FEWEST_ROWS = 12288, 4096
# Standard deviations of a sample by which its threshold is lowered.
SIGMAS = 4.0
_HEIGHT = 64
# Blocks that can be lent: their bits fit a word.
_MOST_LENT = 63


class Room:
    """Device memory for selecting `counts[b]` elements of each block b.

    The blocks are interleaved, contiguous, or a single one that lies anyhow.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        counts: Sequence[int],
        device: torch.device,
    ) -> None:
        self.blocks = tuple(blocks)
        self.counts = list(counts)
        self.device = device
        self.one = len(self.blocks) == 1
        first, longest = self.blocks[0], max(b.length for b in self.blocks)
        contiguous = all(block.contiguous for block in self.blocks)
        self.chunk = 0 if contiguous else first.chunk
        self.stride = first.stride
        self.aligned = all(block.start % 16 == 0 for block in self.blocks)
        self.form = {"chunk": self.chunk, "one": self.one}
        self.tiles = max(cdiv(longest, mark.TILE.value), 1)
        self.crowds = cdiv(self.tiles, mark.CROWD.value)
        self.words = choose.COUNTS.value + self.crowds
        self.most = max(self.counts)
        self.room = int(self.most * (1 + SPARE)) + SPARE_COUNT
        self.batches = cdiv(self.room, choose.BATCH.value)
        self.rows = _samplerow_table(longest, len(self.blocks))
        # Blocks that were selected from: their windows are known.
        self.warm: set[int] = set()
        # Blocks whose candidates are in the list and not in the vector, and what they
        # have left there: what rounding to this dtype takes off.
        self.lent: set[int] = set()
        self.rounding = torch.float32
        # Blocks that were taken from last, and how; but those received into before.
        self.taken: dict[int, torch.dtype] = {}
        self.received: set[int] = set()
        self._allocate()

    def _allocate(self) -> None:
        number, device = len(self.blocks), self.device
        self.programs = company(device)
        sizes: list[int] = [
            number * mark.STATE.value,
            number * mark.BINS.value,
            number * self.words,
            dense_select.SHARED.value,
            2 * self.programs,
        ]
        # One piece, because every piece that begins with zeros is a launch.
        zeros = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        parts = torch.split(zeros, sizes)
        self.state, self.sampled, self.cleared, self.shared, self.parts = parts
        wide: dict[str, Any] = {"dtype": torch.int64, "device": device}
        self.listed = torch.empty(number * self.tiles, **wide)
        self.given = torch.empty(number * self.batches, **wide)
        self.found = torch.empty(number * self.room, **wide)
        self.ordered = torch.empty(number * self.room, **wide)
        self.shifts = torch.empty(number * self.tiles, dtype=torch.int32, device=device)
        self.table = _geometry(self.blocks, device)

    def serves(self, device: torch.device, counts: Sequence[int]) -> bool:
        """Whether the lists are on this device and have room for so many elements."""
        return self.device == device and max(counts) <= self.most

    def mark(
        self,
        x: Tensor,
        grad: Tensor | None = None,
        *,
        scale: float = 1.0,
        zeroing: bool = True,
        lending: bool = False,
        numbers: tuple[int, int] | None = None,
    ) -> None:
        """List candidates, of `x * scale + grad` while writing it, or of `x` as it is.

        `numbers` says which blocks, from the first to before the second. If `lending`,
        blocks that were taken from without ado the last time are lent.
        """
        first, end = numbers or (0, len(self.blocks))
        self.restore(x, [number for number in range(first, end) if number in self.lent])
        lent = self._lend() if lending and grad is not None else 0
        block = self.blocks[first]
        place = (self.table, first, block.start, block.length, self.stride)
        given = (x, x if grad is None else grad, scale)
        form = {**self.form, "reading": grad is None}
        aims = _aims(self.blocks, tuple(self.counts), self.rows, self.device)
        grid = (cdiv(self.rows, _HEIGHT), end - first)
        known = self.warm.issuperset(range(first, end))
        for cold in (False,) if known else (True, False):
            mark.sample[grid](
                *given,
                *place,
                aims,
                self.state,
                self.sampled,
                self.cleared,
                self.words,
                self.rows,
                **form,
                cold=cold,
                height=_HEIGHT,
                **EXACT,
            )
        mark.accumulate_and_list[(self.tiles * (end - first),)](
            *given,
            *place,
            self.state,
            self.listed,
            self.found,
            self.room,
            self.tiles,
            self.cleared[choose.COUNTS.value :],
            self.words,
            lent,
            **form,
            scaled=scale != 1.0,
            zeroing=zeroing,
            lending=lent != 0,
            brain=self.rounding == torch.bfloat16,
            aligned=self.aligned,
            running=self.chunk % mark.TILE.value == 0,
            num_warps=2,
            **following(self.device),
        )

    def choose(
        self,
        x: Tensor,
        numbers: Sequence[int],
        counts: Sequence[int],
        *,
        removing: torch.dtype | None = None,
    ) -> list[Sparse]:
        """The largest of the candidates that were listed for these blocks.

        If `removing`, they leave the vector, rounded to that dtype.
        """
        lent = removing == self.rounding and self.lent.issuperset(numbers)
        if not lent:
            self.restore(x, [number for number in numbers if number in self.lent])
        rows = row_table(tuple(numbers), tuple(counts), self.device)
        indices, values = new_lists(sum(counts), self.device)
        known, then = (rows, self.state), following(self.device)
        lists = (self.found, self.room, self.cleared, self.words)
        tables = (self.listed, self.shifts, self.tiles, self.batches)
        grid = (self.batches, len(counts))
        larger = (self.batches + self.crowds, len(counts))
        choose.count_coarse[larger](*known, *lists, *tables, num_warps=8, **then)
        order = (self.shifts, self.ordered, self.tiles)
        choose.count_fine[grid](*known, *lists, *order, num_warps=8, **then)
        sorted_lists = (self.ordered, self.room, self.given)
        choose.count_given[grid](*known, *sorted_lists, num_warps=8, **then)
        out = (indices, values)
        place = (x, self.table, self.blocks[0].start, self.stride)
        how = {"removing": removing is not None, "lent": lent}
        how["brain"] = removing == torch.bfloat16
        form = {**self.form, **how, "num_warps": 8}
        choose.write[grid](*known, *sorted_lists, *out, *place, **form, **then)
        self._dense(x, rows, len(counts), out, **how)
        self.lent.difference_update(numbers)
        self.warm.update(numbers)
        edges = list(pairwise((0, *accumulate(counts))))
        return [(indices[low:high], values[low:high]) for low, high in edges]

    def _lend(self) -> int:
        """Lend what was taken alike the last time; answers with a bit for each."""
        numbers = [b for b in self.taken if b < _MOST_LENT]
        if not numbers:
            return 0
        self.rounding = self.taken[numbers[0]]
        self.lent = {b for b in numbers if self.taken[b] == self.rounding}
        return sum(1 << b for b in self.lent)

    def restore(self, x: Tensor, numbers: Sequence[int]) -> None:
        """Put the candidates of these blocks back into the vector."""
        if not numbers:
            return
        rows = row_table(tuple(numbers), (0,) * len(numbers), self.device)
        place = (x, self.table, self.blocks[0].start, self.stride)
        choose.restore[(self.batches, len(numbers))](
            rows, self.state, self.found, self.room, *place, **self.form, **EXACT
        )
        self.lent.difference_update(numbers)

    def _dense(
        self, x: Tensor, rows: Tensor, count: int, out: Sparse, **form: bool
    ) -> None:
        block = self.blocks[0]
        dense_select.partition[(self.programs,)](
            x,
            x,
            rows,
            count,
            self.table,
            block.start,
            block.length,
            self.stride,
            self.state,
            self.shared,
            self.parts,
            self.found,
            self.room,
            *out,
            *out,
            **self.form,
            asked=True,
            splitting=False,
            holes=False,
            **form,
            **TOGETHER,
        )


def lists_candidates(length: int, k: int) -> bool:
    """Whether a list of candidates is worth its making."""
    return SHORT < length <= LONGEST and 0 < k <= length // 8


def _samplerow_table(length: int, blocks: int) -> int:
    neighbours: int = mark.NEIGHBOURS.value
    rows = max(ROWS // blocks, FEWEST_ROWS)
    return max(min(rows, length // (4 * neighbours)), 1)


# Tables that follow from sizes alone: written to the device once, then remembered, so
# that a step copies nothing to it.


@lru_cache(maxsize=1024)
def _geometry(blocks: tuple[Block, ...], device: torch.device) -> Tensor:
    return torch.tensor([[b.start, b.length] for b in blocks], device=device)


@lru_cache(maxsize=1024)
def _aims(
    blocks: tuple[Block, ...],
    counts: tuple[int, ...],
    rows: int,
    device: torch.device,
) -> Tensor:
    """How many elements of a block's sample are to reach its threshold."""
    sampled = rows * mark.NEIGHBOURS.value
    aims = []
    for block, count in zip(blocks, counts, strict=True):
        rank = count * sampled / max(block.length, 1)
        aims.append(int(rank + SIGMAS * sqrt(rank)) + 2)
    return torch.tensor(aims, dtype=torch.int32, device=device)
