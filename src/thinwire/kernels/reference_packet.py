# ruff: noqa: D103, because the front door documents each function.
"""A whole packet, section by section."""

import torch
from torch import Tensor

from thinwire.kernels.reference_elias_fano import encode_bitmap, encode_elias_fano
from thinwire.kernels.reference_halves import to_bfloat16


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
