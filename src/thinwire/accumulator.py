"""Accumulator: one unit's accumulated gradient, and what is extracted from it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import Block, Marker, Sparse


class Accumulator:
    """A flat float32 vector that gradients are added to and entries are taken from.

    The vector is cut into blocks (`set_blocks`), by default one. `take` removes the
    largest entries of blocks. From then on `accumulate_` prepares the next `take` of
    the same blocks while it passes over the vector: it marks candidates, or extracts
    them from the vector into lists. This changes no result.

    `whole` returns the vector itself, with all that was extracted put back. If a
    gradient was accumulated and nothing taken since, nothing more is marked until the
    next `take`. The tensor stays complete, and may be changed, until the next
    `accumulate_`.

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

    __slots__ = ("_marker", "_marking", "_untaken", "_x")

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._x = kernels.zeros(size, torch.device(device))
        self._marker = Marker((Block.whole(size),), lending=True)
        self._marking = False
        # Whether candidates were prepared of which none was taken.
        self._untaken = False

    @classmethod
    def of(cls, values: Tensor) -> "Accumulator":
        """An accumulator that holds a copy of a vector."""
        found = cls(values.numel(), values.device)
        found.whole().copy_(values)
        return found

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
        return self._marker.blocks

    def set_blocks(self, blocks: tuple[Block, ...]) -> None:
        """Cut the vector into blocks: contiguous ones, or interleaved by one chunk."""
        if blocks != self._marker.blocks:
            self.whole()
            self._marker = Marker(blocks, lending=True)
            self._marking = False

    def accumulate_(self, grad: Tensor, *, offset: int = 0, scale: float = 1.0) -> None:
        """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

        A gradient in several pieces is accumulated from the first element on.
        """
        self._untaken = self._marking
        marker = self._marker if self._marking else None
        kernels.accumulate_(self._x, grad, offset=offset, scale=scale, marker=marker)

    def take(
        self,
        counts: Sequence[int],
        numbers: Sequence[int] | None = None,
        rounding: torch.dtype = torch.float32,
    ) -> list[Sparse]:
        """Remove the `counts[i]` largest |v| of block `numbers[i]` (all by default).

        Ties go to the smaller index; indices ascend. Returned are exact values. What
        leaves the vector is rounded to `rounding`, float32 or bfloat16: the rounding
        error stays.
        """
        self._marking, self._untaken = True, False
        return kernels.take_each(
            self._x, counts, marker=self._marker, numbers=numbers, rounding=rounding
        )

    def select(
        self, counts: Sequence[int], numbers: Sequence[int] | None = None
    ) -> list[Sparse]:
        """What `take` would return; the vector keeps it."""
        self._marking, self._untaken = True, False
        return kernels.select_each(
            self._x, counts, marker=self._marker, numbers=numbers
        )

    def add_(self, indices: Tensor, values: Tensor, number: int = 0) -> None:
        """`x[indices] += values` in a block; the block may be taken from afterwards."""
        kernels.add_at_(self._x, indices, values, marker=self._marker, number=number)

    def gather(self, indices: Tensor, number: int = 0) -> Tensor:
        """`x[indices]` in a block that was taken or selected from."""
        return kernels.gather(self._x, indices, block=self.blocks[number])

    def subtract_(
        self,
        indices: Tensor,
        values: Tensor,
        number: int = 0,
        *,
        held: Tensor | None = None,
    ) -> None:
        """`x[indices] -= values` in a block that was taken or selected from.

        `held` is `x[indices]` where the caller knows it: it is then not read.
        """
        block = self.blocks[number]
        if held is None:
            kernels.subtract_at_(self._x, indices, values, block=block)
        else:
            kernels.leave_at_(self._x, indices, held, values, block=block)

    def return_(
        self,
        indices: Tensor,
        values: Tensor,
        number: int = 0,
        *,
        sent: Tensor | None = None,
        holders: tuple[int, int] = (1, 0),
    ) -> None:
        """`x[indices] += values - sent` in a block that was taken from.

        `holders` are the number of ranks that return the same list, and this rank's
        number among them: each returns its share (see `kernels.keep_at_`).
        """
        kernels.keep_at_(
            self._x,
            indices,
            values,
            told=sent,
            holders=holders,
            block=self.blocks[number],
        )

    def clear_(self, indices: Tensor, number: int = 0) -> None:
        """`x[indices] = 0` in a block that was selected from, finite or not."""
        zeros = self._x.new_zeros(len(indices))
        kernels.scatter_(self._x, indices, zeros, block=self.blocks[number])

    def zero_(self) -> None:
        """Set the vector to zero."""
        kernels.reclaim_(self._x, self._marker)
        self._x.zero_()

    def whole(self) -> Tensor:
        """The vector itself, complete."""
        kernels.reclaim_(self._x, self._marker)
        if self._untaken:
            self._marking = self._untaken = False
        return self._x
