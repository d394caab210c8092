"""Accumulator: one unit's accumulated gradient, and what is extracted from it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import Block, Sparse
from thinwire.kernels.blocks import chunk_of
from thinwire.kernels.candidates import Candidates
from thinwire.kernels.dispatch import recorded


class Accumulator:
    """A flat float32 vector that gradients are added to and entries are taken from.

    The vector is cut into blocks (`set_blocks`), by default one. `take` removes the
    largest entries of blocks. From then on `accumulate_` prepares the next `take` of
    the same blocks while it passes over the vector: it marks candidates, or extracts
    them from the vector into lists. This changes no result.

    `whole` puts back what was extracted and returns the vector itself. The caller may
    read and change it until the next `accumulate_`. A caller that uses `whole` instead
    of `take` after a gradient needs no candidates: `accumulate_` then prepares none,
    until `take` is used again.

    While `undoable` is set, `accumulate_` also keeps the vector as it was before, in
    memory of the same size: `undo_` then returns to it, whatever came after.

    Threads: an accumulator has no lock. It belongs to the thread that runs its
    reduction, from `accumulate_` until the collective returns. Between reductions any
    one thread may use it. Kernels divide work among helper threads and return when
    these are done.

    >>> x = Accumulator(4)
    >>> x.accumulate_(torch.tensor([1.0, -3.0, 2.0, 0.5]))
    >>> ((indices, values),) = x.take([2])
    >>> indices.tolist(), values.tolist(), x.whole().tolist()
    ([1, 2], [-3.0, 2.0], [1.0, 0.0, 0.0, 0.5])
    """

    __slots__ = (
        *("_before", "_blocks", "_candidates", "_marking", "_untaken", "_x"),
        "undoable",
    )

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._x = kernels.zeros(size, torch.device(device))
        self._blocks: tuple[Block, ...] = (Block.whole(size),)
        self._candidates: Candidates | None = None
        self._marking = False
        # Blocks that may have candidates, marked or extracted.
        self._untaken: set[int] = set()
        self._before: Tensor | None = None
        self.undoable = False

    @classmethod
    def of(cls, values: Tensor) -> "Accumulator":
        """An accumulator that holds a copy of a vector."""
        found = cls(values.numel(), values.device)
        found.whole().copy_(values)
        return found

    @classmethod
    def over(cls, values: Tensor) -> "Accumulator":
        """An accumulator whose vector is a part of another one's.

        Until `whole` of this one is called, the other one's part is not complete.
        """
        found = cls(0, values.device)
        found._x, found._blocks = values, (Block.whole(values.numel()),)
        return found

    def __reduce__(self) -> tuple[Callable[[Tensor], "Accumulator"], tuple[Tensor]]:
        return Accumulator.of, (self.whole(),)

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self._x.numel()

    @property
    def device(self) -> torch.device:
        """Where the vector is."""
        return self._x.device

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that entries are taken from; indices count within a block."""
        return self._blocks

    def set_blocks(self, blocks: tuple[Block, ...]) -> None:
        """Cut the vector into blocks: contiguous ones, or interleaved by one chunk."""
        if blocks == self._blocks:
            return
        if chunk_of(blocks) < 0 or sum(b.length for b in blocks) != self.size:
            raise ValueError(
                f"{blocks} are not contiguous or interleaved blocks of {self.size} "
                "elements"
            )
        self.whole()
        self._blocks, self._candidates, self._marking = blocks, None, False

    def accumulate_(self, grad: Tensor, *, offset: int = 0, scale: float = 1.0) -> None:
        """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

        A gradient in several pieces is accumulated from the first element on.
        """
        if self._candidates is None or not self._marking:
            before = self._kept
            kernels.accumulate_(
                self._x, grad, offset=offset, scale=scale, before=before
            )
        else:
            self._accumulate(self._candidates, grad, offset, scale)

    @recorded("accumulate_")
    def _accumulate(
        self, candidates: Candidates, grad: Tensor, offset: int, scale: float
    ) -> None:
        self._untaken.update(range(len(self._blocks)))
        before = self._kept
        candidates.accumulate_(grad, offset=offset, scale=scale, before=before)

    @recorded("take")
    def take(
        self,
        counts: Sequence[int],
        numbers: Sequence[int] | None = None,
        rounding: torch.dtype = torch.float32,
    ) -> list[Sparse]:
        """Remove the `counts[i]` largest |v| of block `numbers[i]` (all by default).

        Ties go to the smaller index; indices ascend. Exact values are returned. What
        leaves the vector is rounded to `rounding`, float32 or bfloat16: the rounding
        error stays.
        """
        if rounding not in (torch.float32, torch.bfloat16):
            raise ValueError(f"values are rounded to float32 or bfloat16: {rounding}")
        return self._select(counts, numbers, rounding)

    @recorded("select")
    def select(
        self, counts: Sequence[int], numbers: Sequence[int] | None = None
    ) -> list[Sparse]:
        """What `take` would return; the vector keeps it."""
        return self._select(counts, numbers, None)

    def _select(
        self,
        counts: Sequence[int],
        numbers: Sequence[int] | None,
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        numbers = range(len(self._blocks)) if numbers is None else numbers
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"blocks {list(numbers)}: name each of them once")
        if self._candidates is None:
            self._candidates = kernels.new_candidates(self._x, self._blocks)
        lists = self._candidates.select(counts, numbers, removing)
        self._untaken.difference_update(numbers)
        self._marking = True
        return lists

    @recorded("add_")
    def add_(self, indices: Tensor, values: Tensor, number: int = 0) -> None:
        """`x[indices] += values` in a block."""
        if self._candidates is not None and number in self._untaken:
            self._candidates.add_(indices, values, number)
        else:
            kernels.add_at_(self._x, indices, values, block=self._blocks[number])

    def gather(self, indices: Tensor, number: int = 0) -> Tensor:
        """`x[indices]` in a block."""
        return kernels.gather(self._of(number), indices, block=self._blocks[number])

    def subtract_(
        self,
        indices: Tensor,
        values: Tensor,
        number: int = 0,
        *,
        held: Tensor | None = None,
    ) -> None:
        """`x[indices] -= values` in a block.

        `held` is `x[indices]` if the caller knows it; the vector is then not read.
        """
        x, block = self._of(number), self._blocks[number]
        if held is None:
            kernels.subtract_at_(x, indices, values, block=block)
        else:
            kernels.leave_at_(x, indices, held, values, block=block)

    def return_(
        self,
        indices: Tensor,
        values: Tensor,
        number: int = 0,
        *,
        sent: Tensor | None = None,
        holders: tuple[int, int] = (1, 0),
    ) -> None:
        """`x[indices] += values - sent` in a block.

        `holders` are the number of ranks that return the same list, and this rank's
        number among them: each returns its share (see `kernels.return_at_`).
        """
        kernels.return_at_(
            self._of(number),
            indices,
            values,
            sent=sent,
            holders=holders,
            block=self._blocks[number],
        )

    def clear_(self, indices: Tensor, number: int = 0) -> None:
        """`x[indices] = 0` in a block, also where it is not finite."""
        x = self._of(number)
        zeros = x.new_zeros(len(indices))
        kernels.scatter_(x, indices, zeros, block=self._blocks[number])

    @property
    def before(self) -> Tensor:
        """What `undo_` returns to. The caller may change it."""
        if not self.undoable or self._before is None:
            raise ValueError("the last gradient was accumulated without being undoable")
        return self._before

    def undo_(self) -> None:
        """Return to the vector before the last gradient, to the bit."""
        self.whole().copy_(self.before)

    @property
    def _kept(self) -> Tensor | None:
        if not self.undoable:
            return None
        if self._before is None:
            self._before = kernels.zeros(self.size, self.device)
        return self._before

    def zero_(self) -> None:
        """Set the vector to zero."""
        if self._untaken:
            self._restore()
        self._x.zero_()

    def whole(self) -> Tensor:
        """The vector itself, complete."""
        if self._untaken:
            self._marking = len(self._untaken) < len(self._blocks)
            self._restore()
        return self._x

    def _of(self, number: int) -> Tensor:
        """The vector with at least this block complete."""
        return self.whole() if number in self._untaken else self._x

    @recorded("restore_")
    def _restore(self) -> None:
        if self._candidates is not None:
            self._candidates.restore_()
        self._untaken.clear()
