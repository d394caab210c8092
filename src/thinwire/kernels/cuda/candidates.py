"""Candidates for selection on a CUDA device, listed or extracted while accumulating.

A whole gradient in one piece lists the candidates of all blocks in its own pass. After
pieces, and where entries were added to a block, selection reads the block once more.
Nothing here waits for the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda.accumulate import accumulate_, select
from thinwire.kernels.cuda.buffer import CandidateBuffer, lists_candidates
from thinwire.kernels.cuda.elements import add_at_, leave_at_
from thinwire.kernels.cuda.halves import to_bfloat16
from thinwire.kernels.cuda.launch import flat
from thinwire.kernels.sections import Sparse, check_gradient


class Candidates:
    """The candidates of a vector's blocks. See `thinwire.kernels.candidates`."""

    # Benchmarks measure a pass that does not set the gradient to zero.
    zeroing = True

    def __init__(self, x: Tensor, blocks: tuple[Block, ...]) -> None:
        self._x, self._blocks = flat(x), blocks
        self.buffer: CandidateBuffer | None = None
        # Blocks whose lists describe the vector.
        self._valid: set[int] = set()
        # Blocks that were taken from last, with the dtype, and without an addition
        # before: their candidates are extracted in the next step.
        self._taken: dict[int, torch.dtype] = {}
        self._added: set[int] = set()

    def accumulate_(
        self,
        grad: Tensor,
        *,
        offset: int,
        scale: float,
        before: Tensor | None = None,
    ) -> None:
        check_gradient(grad, offset, len(self._x))
        self.restore_()
        buffer, whole = self.buffer, grad.numel() == len(self._x)
        if not whole or buffer is None or min(buffer.counts) == 0:
            accumulate_(self._x, grad, offset=offset, scale=scale, before=before)
            return
        given = grad.detach().contiguous().view(-1)
        buffer.accumulate_(given, scale, self._taken, before, zeroing=self.zeroing)
        self._valid = set(range(len(self._blocks)))
        if self.zeroing and not grad.is_contiguous():
            grad.zero_()

    def select(
        self,
        counts: Sequence[int],
        numbers: Sequence[int],
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        lengths = [self._blocks[number].length for number in numbers]
        if all(map(lists_candidates, lengths, counts)):
            return self._select_listed(counts, numbers, removing)
        selected = []
        for k, number in zip(counts, numbers, strict=True):
            block = self._blocks[number]
            indices, values = self._select_one(k, number)
            if removing is not None:
                rounded = removing == torch.bfloat16
                sent = to_bfloat16(values).float() if rounded else values
                leave_at_(self._x, indices, values, sent, block=block)
            selected.append((indices, values))
        return selected

    def _select_one(self, k: int, number: int) -> Sparse:
        block = self._blocks[number]
        if lists_candidates(block.length, k):
            return self._select_listed((k,), (number,), None)[0]
        self._forget(number)
        return select(self._x, k, block=block)

    def _select_listed(
        self,
        counts: Sequence[int],
        numbers: Sequence[int],
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        buffer = self.buffer
        if buffer is None or max(counts) > buffer.most:
            self.restore_()
            wanted = [1] * len(self._blocks)
            for number, count in zip(numbers, counts, strict=True):
                wanted[number] = count
            self.buffer = buffer = CandidateBuffer(self._x, self._blocks, wanted)
            self._taken.clear()
            self._added.clear()
        unlisted = []
        for number, count in zip(numbers, counts, strict=True):
            if number not in self._valid or count > buffer.counts[number]:
                unlisted.append(number)
            buffer.counts[number] = count
            self._valid.discard(number)
            self._taken.pop(number, None)
            if removing is not None and number not in self._added:
                self._taken[number] = removing
        self._added.difference_update(numbers)
        for first, end in _runs(unlisted):
            buffer.restore_([b for b in range(first, end) if b in buffer.extracted])
            buffer.list_candidates(first, end)
        return buffer.choose(numbers, counts, removing)

    def _forget(self, number: int) -> None:
        """Forget the candidates of a block; extracted ones return to the vector."""
        self._valid.discard(number)
        if self.buffer is not None and number in self.buffer.extracted:
            self.buffer.restore_([number])

    def add_(self, indices: Tensor, values: Tensor, number: int) -> None:
        # A list of candidates is not added to: the block is read once more instead.
        self._forget(number)
        self._added.add(number)
        add_at_(self._x, indices, values, block=self._blocks[number])

    def restore_(self) -> None:
        self._valid.clear()
        if self.buffer is not None:
            self.buffer.restore_(sorted(self.buffer.extracted))


def new_candidates(x: Tensor, blocks: tuple[Block, ...]) -> Candidates:
    return Candidates(x, blocks)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as ranges, in ascending order."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs
