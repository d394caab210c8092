"""Device memory for selecting from the blocks of a vector: lists, counts, thresholds.

No result depends on what it contains at the beginning of a step. Sizes follow from the
blocks and from how many elements of each were selected last, so nothing is read back.
"""

from collections.abc import Mapping, Sequence
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
from thinwire.kernels.sections import Sparse

Lists = list[Sparse]

# Blocks up to this length are selected from in one launch that reads them six times.
SHORT = 1 << 20
# A list has space for this much more than what is selected: a share and a number.
SPARE, SPARE_COUNT = 0.75, 2048
# Rows of 32 neighbours that all blocks together are sampled by, and each at least.
ROWS, FEWEST_ROWS = 12288, 4096
# Standard deviations of a sample by which its threshold is lowered.
SIGMAS = 4.0
_HEIGHT = 64
# Blocks whose candidates can be extracted: their bits fit a word.
_MOST_EXTRACTED = 63


class CandidateBuffer:
    """Lists of candidates for selecting `counts[b]` elements of each block b of `x`.

    The blocks are interleaved, contiguous, or a single one of any kind.
    """

    def __init__(
        self, x: Tensor, blocks: Sequence[Block], counts: Sequence[int]
    ) -> None:
        self.x, self.device = x, x.device
        self.blocks = tuple(blocks)
        self.counts = list(counts)
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
        self.capacity = int(self.most * (1 + SPARE)) + SPARE_COUNT
        self.batches = cdiv(self.capacity, choose.BATCH.value)
        self.rows = _sample_rows(longest, len(self.blocks))
        # Blocks that were selected from: their windows are known.
        self.warm: set[int] = set()
        # Blocks whose candidates are in the list and not in the vector, which holds
        # the error of rounding them to this dtype.
        self.extracted: set[int] = set()
        self.rounding = torch.float32
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
        self.found = torch.empty(number * self.capacity, **wide)
        self.ordered = torch.empty(number * self.capacity, **wide)
        self.shifts = torch.empty(number * self.tiles, dtype=torch.int32, device=device)
        self.table = _geometry(self.blocks, device)

    def accumulate_(
        self,
        grad: Tensor,
        scale: float,
        extracting: Mapping[int, torch.dtype],
        before: Tensor | None,
        *,
        zeroing: bool,
    ) -> None:
        """`x = x * scale + grad`, and list candidates; `before` is what `x` was.

        `extracting` are the blocks whose candidates leave the vector, and the dtype
        they are rounded to. Blocks with another dtype than the first are only listed.
        """
        numbers = [number for number in extracting if number < _MOST_EXTRACTED]
        if numbers:
            self.rounding = extracting[numbers[0]]
        self.extracted = {b for b in numbers if extracting[b] == self.rounding}
        self._list((0, len(self.blocks)), grad, scale, before, zeroing=zeroing)

    def list_candidates(self, first: int, end: int) -> None:
        """List candidates of blocks from `first` to before `end`."""
        self._list((first, end), None, 1.0, None, zeroing=False)

    def _list(
        self,
        numbers: tuple[int, int],
        grad: Tensor | None,
        scale: float,
        before: Tensor | None,
        *,
        zeroing: bool,
    ) -> None:
        first, end = numbers
        bits = 0 if grad is None else sum(1 << b for b in self.extracted)
        block = self.blocks[first]
        place = (self.table, first, block.start, block.length, self.stride)
        given = (self.x, self.x if grad is None else grad, scale)
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
            self.x if before is None else before,
            *place,
            self.state,
            self.listed,
            self.found,
            self.capacity,
            self.tiles,
            self.cleared[choose.COUNTS.value :],
            self.words,
            bits,
            **form,
            scaled=scale != 1.0,
            zeroing=zeroing,
            keeping=before is not None,
            extracting=bits != 0,
            bf16=self.rounding == torch.bfloat16,
            aligned=self.aligned,
            running=self.chunk % mark.TILE.value == 0,
            num_warps=2,
            **following(self.device),
        )

    def choose(
        self,
        numbers: Sequence[int],
        counts: Sequence[int],
        removing: torch.dtype | None,
    ) -> Lists:
        """The largest of the candidates that were listed for these blocks.

        With `removing`, they leave the vector, rounded to that dtype.
        """
        extracted = removing == self.rounding and self.extracted.issuperset(numbers)
        if not extracted:
            self.restore_([number for number in numbers if number in self.extracted])
        rows = row_table(tuple(numbers), tuple(counts), self.device)
        indices, values = new_lists(sum(counts), self.device)
        known, then = (rows, self.state), following(self.device)
        lists = (self.found, self.capacity, self.cleared, self.words)
        tables = (self.listed, self.shifts, self.tiles, self.batches)
        grid = (self.batches, len(counts))
        larger = (self.batches + self.crowds, len(counts))
        choose.count_coarse[larger](*known, *lists, *tables, num_warps=8, **then)
        order = (self.shifts, self.ordered, self.tiles)
        choose.count_fine[grid](*known, *lists, *order, num_warps=8, **then)
        sorted_lists = (self.ordered, self.capacity, self.given)
        choose.count_given[grid](*known, *sorted_lists, num_warps=8, **then)
        out = (indices, values)
        place = (self.x, self.table, self.blocks[0].start, self.stride)
        how = {"removing": removing is not None, "extracted": extracted}
        how["bf16"] = removing == torch.bfloat16
        form = {**self.form, **how, "num_warps": 8}
        choose.write[grid](*known, *sorted_lists, *out, *place, **form, **then)
        self._dense(rows, len(counts), out, **how)
        self.extracted.difference_update(numbers)
        self.warm.update(numbers)
        edges = list(pairwise((0, *accumulate(counts))))
        return [(indices[low:high], values[low:high]) for low, high in edges]

    def restore_(self, numbers: Sequence[int]) -> None:
        """Put the candidates of these blocks back into the vector."""
        if not numbers:
            return
        rows = row_table(tuple(numbers), (0,) * len(numbers), self.device)
        place = (self.x, self.table, self.blocks[0].start, self.stride)
        choose.restore[(self.batches, len(numbers))](
            rows, self.state, self.found, self.capacity, *place, **self.form, **EXACT
        )
        self.extracted.difference_update(numbers)

    def _dense(self, rows: Tensor, count: int, out: Sparse, **form: bool) -> None:
        block = self.blocks[0]
        dense_select.partition[(self.programs,)](
            self.x,
            self.x,
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
            self.capacity,
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
    """Whether a list of candidates is faster than reading the block."""
    return SHORT < length <= LONGEST and 0 < k <= length // 8


def _sample_rows(length: int, blocks: int) -> int:
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
    blocks: tuple[Block, ...], counts: tuple[int, ...], rows: int, device: torch.device
) -> Tensor:
    """How many elements of a block's sample are to reach its threshold."""
    sampled = rows * mark.NEIGHBOURS.value
    aims = []
    for block, count in zip(blocks, counts, strict=True):
        rank = count * sampled / max(block.length, 1)
        aims.append(int(rank + SIGMAS * sqrt(rank)) + 2)
    return torch.tensor(aims, dtype=torch.int32, device=device)
