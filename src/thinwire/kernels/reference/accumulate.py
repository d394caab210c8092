"""Error feedback on a vector: accumulate a gradient, select and take from it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.dispatch import primitive
from thinwire.kernels.marker import Marker, chosen_blocks
from thinwire.kernels.reference.dense import by_magnitude
from thinwire.kernels.reference.elements import positions, subtract_at_
from thinwire.kernels.reference.halves import to_bfloat16
from thinwire.kernels.sections import index_dtype

Sparse = tuple[Tensor, Tensor]


@primitive
def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    marker: Marker | None = None,
) -> None:
    """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

    With a `marker`, candidates for selection are marked in the same pass.
    """
    part = x[offset : offset + grad.numel()]
    if scale != 1.0:
        part.mul_(scale)
    part.add_(grad)
    grad.zero_()
    if marker is not None:
        # The reference selects by sorting, so it marks nothing.
        marker.valid = [False] * len(marker.blocks)


@primitive
def select(
    x: Tensor,
    k: int,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> Sparse:
    """The `k` largest |v| of a block, ties to the smaller index, indices ascending.

    Indices count within the block. `number` says which of the marker's blocks it is.

    >>> i, v = select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)
    >>> i.tolist(), v.tolist()
    ([1, 2], [-2.0, 2.0])
    """
    if marker is not None:
        block = marker.blocks[number]
    block = block or Block.whole(x.numel())
    every = torch.arange(block.length, device=x.device)
    values = x[positions(every, block)]
    indices = by_magnitude(values)[:k].sort().values
    return indices.to(index_dtype(block.length)), values[indices]


@primitive
def select_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
) -> list[Sparse]:
    """`select` from several of the marker's blocks, by default all, at once."""
    chosen = chosen_blocks(marker, numbers)
    return [
        select(x, k, marker=marker, number=number)
        for k, number in zip(counts, chosen, strict=True)
    ]


@primitive
def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
    rounding: torch.dtype = torch.float32,
) -> list[Sparse]:
    """`select_each`, and what is selected is subtracted, rounded to a dtype.

    Blocks may be taken from at once, so each is named once at most. Only what rounding
    takes off stays: nothing with float32; bfloat16 is the other one.

    >>> x, marker = torch.tensor([1.0, 2.0 + 2**-9]), Marker((Block.whole(2),))
    >>> taken = take_each(x, [1], marker=marker, rounding=torch.bfloat16)
    >>> taken[0][1].tolist(), x.tolist()
    ([2.001953125], [1.0, 0.001953125])
    """
    taken = []
    chosen = chosen_blocks(marker, numbers, rounding)
    for k, number in zip(counts, chosen, strict=True):
        block = marker.blocks[number]
        indices, values = select(x, k, block=block)
        told = values if rounding == torch.float32 else to_bfloat16(values).float()
        subtract_at_(x, indices, told, block=block)
        taken.append((indices, values))
    return taken


@primitive
def reclaim_(x: Tensor, marker: Marker) -> None:
    """Make `x` whole for whoever looks at it otherwise; its marks are void then."""
    del x
    marker.forget()


@primitive
def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> None:
    """`x[indices] += values` in a block; with a marker, those elements are marked."""
    if marker is not None:
        block = marker.blocks[number]
        marker.valid[number] = False
    x[positions(indices, block)] += values
