"""Accumulate a gradient, select the largest elements."""

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.dense import by_magnitude
from thinwire.kernels.reference.elements import positions
from thinwire.kernels.sections import Sparse, index_dtype


@primitive
def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    before: Tensor | None = None,
) -> None:
    """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

    The same elements of `before` become those of `x` as they were.
    """
    part = x[offset : offset + grad.numel()]
    if before is not None:
        before[offset : offset + grad.numel()].copy_(part)
    if scale != 1.0:
        part.mul_(scale)
    part.add_(grad)
    grad.zero_()


@primitive
def select(x: Tensor, k: int, *, block: Block | None = None) -> Sparse:
    """The `k` largest |v| of a block, ties to the smaller index, indices ascending.

    Indices count within the block.

    >>> i, v = select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)
    >>> i.tolist(), v.tolist()
    ([1, 2], [-2.0, 2.0])
    """
    block = block or Block.whole(x.numel())
    every = torch.arange(block.length, device=x.device)
    values = x[positions(every, block)]
    indices = by_magnitude(values)[:k].sort().values
    return indices.to(index_dtype(block.length)), values[indices]
