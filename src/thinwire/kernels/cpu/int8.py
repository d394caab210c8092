"""Values in 8 bits, a scale for every 256 of them: below 1 ns a value either way.

A block is read twice, the second time from the cache. The loops over it are written so
that numba makes vector instructions of them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Floats, Halves
from thinwire.kernels.cpu.compiled import kernel
from thinwire.kernels.cpu.intrinsics import float_bits, float_of
from thinwire.kernels.reference.int8 import check_numbers, check_scales, nbytes_int8
from thinwire.kernels.sections import check_length

Numbers = NDArray[np.int8]

_BLOCK = 256
_MOST = 127
_LARGEST_SCALE = (121 + 127) << 23
_DROPPED = 0x7FFFF
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
# Added to a small number, it leaves no room for a fraction: the sum is rounded to the
# nearest whole number, ties to even.
_ROUNDER = 1.5 * 2**23


def encode_int8(values: Tensor) -> Tensor:
    section = torch.empty(nbytes_int8(len(values)), dtype=torch.uint8)
    octets = section.numpy()
    ends = 2 * -(-len(values) // _BLOCK)
    halves, numbers = octets[:ends].view(np.uint16), octets[ends:].view(np.int8)
    _encode(values.contiguous().numpy(), halves, numbers)
    return section


def decode_int8(section: Tensor, nnz: int, *, errors: Tensor | None = None) -> Tensor:
    check_length(section, 8 * nbytes_int8(nnz))
    ends = 2 * -(-nnz // _BLOCK)
    octets = section.contiguous().numpy()
    halves = octets[:ends].view(np.uint16)
    numbers = octets[ends : ends + nnz].view(np.int8)
    values = torch.empty(nnz)
    scale, number = _decode(halves, numbers, values.numpy())
    check_scales(scale)
    check_numbers(number)
    return values


@kernel
def _encode(values: Floats, halves: Halves, numbers: Numbers) -> None:
    nothing = np.float32(0)
    rounder = np.float32(_ROUNDER)
    for b in range(len(halves)):
        start = b * _BLOCK
        end = min(start + _BLOCK, len(values))
        peak = np.int32(0)
        for i in range(start, end):
            bits = np.int32(float_bits(values[i]) & _MAGNITUDE)
            peak = max(peak, bits if bits < _INFINITY else np.int32(0))
        least = float_bits(np.float32(float_of(peak) / np.float32(_MOST)))
        kept: Any = min((np.int64(least) + _DROPPED) & ~_DROPPED, _LARGEST_SCALE)
        halves[b] = kept >> 16
        scale = float_of(np.int32(kept)) if kept else np.float32(1)
        for i in range(start, end):
            finite = (float_bits(values[i]) & _MAGNITUDE) < _INFINITY
            steps = (values[i] if finite else nothing) / scale
            number = np.int32((steps + rounder) - rounder)
            numbers[i] = min(max(number, np.int32(-_MOST)), np.int32(_MOST))


@kernel
def _decode(halves: Halves, numbers: Numbers, values: Floats) -> Any:
    """Decode to `values`; returns whether a scale, and whether a number, is invalid."""
    wrong = False
    least = np.int8(0)
    for b in range(len(halves)):
        wrong |= halves[b] > _LARGEST_SCALE >> 16
        scale = float_of(np.int32(np.int64(halves[b]) << 16))
        for i in range(b * _BLOCK, min((b + 1) * _BLOCK, len(values))):
            least = min(least, numbers[i])
            values[i] = np.float32(numbers[i]) * scale
    return wrong, least < -_MOST
