# ruff: noqa: D103, because the front door documents each function.
"""A whole packet, section by section."""

import torch
from torch import Tensor

from thinwire.kernels.reference_elias_fano import (
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
)
from thinwire.kernels.reference_halves import to_bfloat16
from thinwire.kernels.sections import check_spare, index_nbits

Sparse = tuple[Tensor, Tensor]


def encode_packet(
    header: Tensor, indices: Tensor, values: Tensor, size: int, low: int | None
) -> Tensor:
    if low is None:
        index = encode_bitmap(indices, size)
    else:
        index = encode_elias_fano(indices, size, low)
    value = to_bfloat16(values).view(torch.uint8)
    gaps = [part.new_zeros(-len(part) % 8) for part in (index, value)]
    return torch.cat([header, index, gaps[0], value, gaps[1]])


def decode_packet(
    body: Tensor, begin: int, size: int, nnz: int, *, low: int | None
) -> Sparse:
    end = 8 * -(-index_nbits(size, nnz, low) // 64)
    index, value = torch.tensor_split(body[begin:], [end])
    if low is None:
        indices = decode_bitmap(index, size, nnz)
    else:
        indices = decode_elias_fano(index, size, nnz, low=low)
    halves = value.view(torch.bfloat16)
    check_spare(not halves[nnz:].view(torch.int16).any())
    return indices, halves[:nnz].float()
