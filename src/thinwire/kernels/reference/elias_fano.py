"""Bitmaps and Elias-Fano lists, one bit at a time."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.bits import from_bits, pack_bits, to_bits, unpack_bits
from thinwire.kernels.sections import (
    check_count,
    check_length,
    check_order,
    index_dtype,
)


@primitive
def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    """A bit for each of `size` elements, set at each index; in whole bytes.

    The first element's bit is the least significant one of the first byte.

    >>> import torch
    >>> encode_bitmap(torch.tensor([0, 5, 8, 9, 14]), 16).tolist()
    [33, 67]
    """
    bits = torch.zeros(size, dtype=torch.uint8, device=indices.device)
    bits[indices.long()] = 1
    return from_bits(bits)


@primitive
def decode_bitmap(
    section: Tensor, size: int, nnz: int, *, errors: Tensor | None = None
) -> Tensor:
    """Which bits are set, or `ValueError` where there are not `nnz` below `size`.

    With `errors`, a device may set that flag instead of raising.
    """
    check_length(section, size)
    ones = to_bits(section).nonzero().view(-1)
    return _checked(ones, size, nnz)


@primitive
def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    """The `low` low bits of every index, then one set bit for each: the high vector.

    Entry i sets bit `(index >> low) + i` of the vector, which has `nnz + (size >> low)`
    bits and follows the low bits without a gap.

    >>> import torch
    >>> encode_elias_fano(torch.tensor([0, 5, 8, 9, 14]), 16, low=1).tolist()
    [42, 25, 1]
    """
    nnz = len(indices)
    highs = (indices.long() >> low) + torch.arange(nnz, device=indices.device)
    vector = torch.zeros(nnz + (size >> low), dtype=torch.uint8, device=indices.device)
    vector[highs] = 1
    lows = to_bits(pack_bits(indices, low))[: nnz * low]
    return from_bits(torch.cat([lows, vector]))


@primitive
def decode_elias_fano(
    section: Tensor, size: int, nnz: int, *, low: int, errors: Tensor | None = None
) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list.

    With `errors`, a device may set that flag instead of raising.
    """
    check_length(section, nnz * (low + 1) + (size >> low))
    lows = unpack_bits(section, nnz, low)
    ones = to_bits(section)[nnz * low :].nonzero().view(-1)
    check_count(len(ones), nnz)
    highs = ones - torch.arange(nnz, device=section.device)
    return _checked((highs << low) | lows, size, nnz)


def _checked(indices: Tensor, size: int, nnz: int) -> Tensor:
    check_count(len(indices), nnz)
    ascending = bool((indices[1:] > indices[:-1]).all())
    check_order(ascending and (nnz == 0 or int(indices[-1]) < size), size)
    return indices.to(index_dtype(size))
