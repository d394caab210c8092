"""Sparse lists: merge, split and join them, with a stable sort."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.dense import by_magnitude
from thinwire.kernels.reference.elements import positions
from thinwire.kernels.sections import Sparse, index_dtype
from thinwire.kernels.trees import added_up


@primitive
def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    """The sum of two sparse lists, indices strictly increasing in all three."""
    both = torch.cat([left, right])
    indices, slot = torch.unique(both, return_inverse=True)
    # Left first, then right, each without duplicates: one addition at most per slot.
    # What only the right lists is added to -0.0, which changes nothing, not even -0.0.
    values = torch.full((len(indices),), -0.0, device=both.device)
    values[slot[: len(left)]] = left_values
    values[slot[len(left) :]] += right_values
    return indices, values


@primitive
def merge_all(lists: Sequence[Sparse]) -> Sparse:
    """The sum of at least one list, added as a balanced tree in the given order."""
    return added_up(lists, lambda left, right: merge_add(*left, *right))


@primitive
def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    """The `k` entries of largest |v| (ties to the smaller index), and the others."""
    order = by_magnitude(values)
    kept, dropped = order[:k].sort().values, order[k:].sort().values
    return (indices[kept], values[kept]), (indices[dropped], values[dropped])


def split_off_all_or_none(
    indices: Tensor, values: Tensor, k: int
) -> tuple[Sparse, Sparse]:
    """`split` where `k` is 0 or less, or not less than the number of entries."""
    every, none = (indices.clone(), values.clone()), (indices[:0], values[:0])
    return (every, none) if k > 0 and len(values) else (none, every)


@primitive
def merge_split(left: Sparse, right: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """The sum of two lists, split, where one of them has at least `k` entries.

    Nothing waits for the number of indices that both list: on a device, the others may
    have as many holes, with a value of zero at an index of -1, which is nowhere.
    """
    return split(*merge_add(*left, *right), k)


@primitive
def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    """One list of the vector from the lists of all its blocks, indices ascending.

    >>> from thinwire.kernels import interleaved_blocks
    >>> evens, odds = torch.tensor([1], dtype=torch.int32), torch.tensor([0])
    >>> i, v = join(
    ...     [(evens, torch.tensor([2.0])), (odds.int(), torch.tensor([1.0]))],
    ...     interleaved_blocks(4, 2, chunk=1),
    ... )
    >>> i.tolist(), v.tolist()
    ([1, 2], [1.0, 2.0])
    """
    places = [
        positions(indices, block)
        for (indices, _), block in zip(lists, blocks, strict=True)
    ]
    indices, order = torch.cat(places).sort()
    size = sum(block.length for block in blocks)
    values = torch.cat([v for _, v in lists])[order]
    return indices.to(index_dtype(size)), values


def join_contiguous(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    """`join` for contiguous blocks in ascending order."""
    dtype = index_dtype(sum(block.length for block in blocks))
    shifted = [
        indices.to(dtype) + block.start
        for (indices, _), block in zip(lists, blocks, strict=True)
    ]
    return torch.cat(shifted), torch.cat([values for _, values in lists])


@primitive
def look_up(indices: Tensor, values: Tensor, wanted: Tensor, others: Tensor) -> Tensor:
    """A list's value at each of the `wanted` indices, or that of `others` there.

    `indices` and `wanted` ascend; `others` has a value for each of the wanted ones.

    >>> look_up(torch.tensor([1, 4]), torch.ones(2), torch.arange(3, 6), torch.zeros(3))
    tensor([0., 1., 0.])
    """
    if len(indices) == 0:
        return others
    at = torch.searchsorted(indices, wanted).clamp_(max=len(indices) - 1)
    return torch.where(indices[at] == wanted, values[at], others)


@primitive
def strictly_increasing(
    indices: Tensor, size: int, *, errors: Tensor | None = None
) -> bool:
    """Whether these are valid indices of a sparse list over `size` elements.

    With `errors`, a device may set that flag and return True.
    """
    if len(indices) == 0:
        return True
    ascending = bool((indices[1:] > indices[:-1]).all())
    return ascending and int(indices[0]) >= 0 and int(indices[-1]) < size


@primitive
def all_finite(values: Tensor, *, errors: Tensor | None = None) -> bool:
    """Whether no value is infinite or NaN.

    With `errors`, a device may set that flag and return True.

    >>> import torch
    >>> all_finite(torch.tensor([1.0, 3e38])), all_finite(torch.tensor([float("nan")]))
    (True, False)
    """
    return bool(values.isfinite().all())
