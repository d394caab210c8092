"""Means over all ranks, written into gradients."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.collectives import Total
from thinwire.errors import GroupError
from thinwire.sparse import SparseVector

Done = Callable[[GroupError | None], None]


class AsyncGroup(Protocol):
    """A group that can start an all-reduce without waiting for it."""

    @property
    def size(self) -> int: ...

    def begin_all_reduce_(self, tensor: Tensor, done: Done) -> None: ...


def begin_mean_(buffer: Tensor, group: AsyncGroup, done: Done) -> None:
    """Start to replace a buffer by its mean; `done` is called from another thread."""
    # As DDP does, to the bit: before the sum, so that half precision does not overflow,
    # and by a product, which for 3 ranks is not the quotient.
    group.begin_all_reduce_(buffer.mul_(1.0 / group.size), done)


def write_mean_(grad: Sequence[Tensor], total: Total, ranks: int) -> Total:
    """Divide a total by the number of ranks and write it into zeroed pieces."""
    if isinstance(total, Tensor):
        total.div_(ranks)
        parts = torch.split(total, [piece.numel() for piece in grad])
        for piece, part in zip(grad, parts, strict=True):
            if piece.data_ptr() != part.data_ptr():
                piece.copy_(part)
        return total
    mean = kernels.write_mean_(grad, total.indices, total.values, ranks=ranks)
    return SparseVector(total.indices, mean, total.size)
