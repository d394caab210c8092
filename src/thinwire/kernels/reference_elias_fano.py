# ruff: noqa: D103, because the front door documents each function.
"""Bitmaps and Elias-Fano lists, one bit at a time."""

import torch
from torch import Tensor

from thinwire.kernels.reference_bits import from_bits, pack_bits, to_bits, unpack_bits
from thinwire.kernels.sections import (
    check_count,
    check_length,
    check_order,
    index_dtype,
)


def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    bits = torch.zeros(size, dtype=torch.uint8, device=indices.device)
    bits[indices.long()] = 1
    return from_bits(bits)


def decode_bitmap(section: Tensor, size: int, nnz: int) -> Tensor:
    check_length(section, size)
    ones = to_bits(section).nonzero().view(-1)
    return _checked(ones, size, nnz)


def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    nnz = len(indices)
    highs = (indices.long() >> low) + torch.arange(nnz, device=indices.device)
    vector = torch.zeros(nnz + (size >> low), dtype=torch.uint8, device=indices.device)
    vector[highs] = 1
    lows = to_bits(pack_bits(indices, low))[: nnz * low]
    return from_bits(torch.cat([lows, vector]))


def decode_elias_fano(section: Tensor, size: int, nnz: int, *, low: int) -> Tensor:
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
