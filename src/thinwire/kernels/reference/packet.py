"""A whole packet, section by section."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.elias_fano import (
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
)
from thinwire.kernels.reference.halves import to_bfloat16
from thinwire.kernels.sections import check_finite, check_spare, index_nbits


@primitive
def encode_packet(
    header: Tensor, indices: Tensor, values: Tensor, size: int, low: int | None
) -> Tensor:
    """A header, then `encode_elias_fano` and `to_bfloat16`, each filled to 8 bytes.

    Without `low`, indices are a bitmap. The header is bytes on the same device.

    >>> import torch
    >>> header, values = torch.zeros(8, dtype=torch.uint8), torch.tensor([1.0, -2.0])
    >>> encode_packet(header, torch.tensor([3, 8]), values, 10, low=None)[8:].tolist()
    [8, 1, 0, 0, 0, 0, 0, 0, 128, 63, 0, 192, 0, 0, 0, 0]
    """
    if low is None:
        index = encode_bitmap(indices, size)
    else:
        index = encode_elias_fano(indices, size, low)
    value = to_bfloat16(values).view(torch.uint8)
    gaps = [part.new_zeros(-len(part) % 8) for part in (index, value)]
    return torch.cat([header, index, gaps[0], value, gaps[1]])


@primitive
def decode_packet(
    body: Tensor,
    begin: int,
    size: int,
    nnz: int,
    *,
    low: int | None,
    errors: Tensor | None = None,
    finite: bool = False,
) -> tuple[Tensor, Tensor]:
    """Indices and values of what `encode_packet` made, after a header of `begin` bytes.

    `ValueError` if the bytes are not valid, or, where all values have to be `finite`,
    if one is not; the number of bytes has been checked.
    """
    end = 8 * -(-index_nbits(size, nnz, low) // 64)
    index, value = torch.tensor_split(body[begin:], [end])
    if low is None:
        indices = decode_bitmap(index, size, nnz)
    else:
        indices = decode_elias_fano(index, size, nnz, low=low)
    halves = value.view(torch.bfloat16)
    check_spare(not halves[nnz:].view(torch.int16).any())
    check_finite(not finite or bool(halves[:nnz].isfinite().all()))
    return indices, halves[:nnz].float()
