"""Float32 values in 16 bits each, in vector instructions: 0.2 to 0.5 ns each."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.arrays import FloatBits, Floats, Halves
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import float_bits, float_of

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_ROUNDS_TO_INFINITY = 0x7F7F8000  # in bfloat16
_HALF = 126 << 23  # the bits of 0.5


def to_bfloat16(values: Tensor) -> Tensor:
    return _converted(values, _to_bfloat16, torch.bfloat16)


def write_bfloat16(values: Floats, halves: Halves) -> None:
    """`to_bfloat16` into memory that is there already."""
    _to_bfloat16(values.view(np.int32), halves)


def to_float16(values: Tensor) -> Tensor:
    return _converted(values, _to_float16, torch.float16)


def _converted(values: Tensor, convert: Any, dtype: torch.dtype) -> Tensor:
    if values.numel() == 0:  # NumPy's would have no stride that torch can view
        return torch.empty(0, dtype=dtype)
    # For a short list NumPy makes room in a third of the time that torch takes.
    halves = np.empty(values.numel(), np.uint16)
    convert(values.contiguous().numpy().view(np.int32), halves)
    return torch.from_numpy(halves).view(dtype)


def read_bfloat16(halves: Halves, values: FloatBits) -> bool:
    """Bfloat16 as float32, into memory that is there; whether all are finite."""
    return bool(_read_bfloat16(halves, values))


@part
def _plus_half(bits: Any) -> Any:
    """The bits of x + 0.5 from the bits of x: rounds x to a multiple of 2**-24."""
    return float_bits(float_of(bits) + np.float32(0.5))


# Numba widens every sum to 64 bits; cut back at each step, the loop stays in 32, with
# twice as many values in a vector.


@kernel
def _to_bfloat16(values: FloatBits, halves: Halves) -> None:
    largest = np.int32(0)
    for i in range(len(values)):
        bits = values[i]
        odd = np.int32((bits >> 16) & 1)
        halves[i] = np.int32(np.int32(bits + 0x7FFF) + odd) >> 16
        largest = max(largest, np.int32(bits & _MAGNITUDE))
    if largest >= _ROUNDS_TO_INFINITY:
        _to_bfloat16_with_care(values, halves)


@part
def _to_bfloat16_with_care(values: FloatBits, halves: Halves) -> None:
    """Round so that finite values stay finite and NaN stays NaN."""
    for i in range(len(values)):
        bits = np.int32(values[i] & _MAGNITUDE)
        odd = np.int32((bits >> 16) & 1)
        # Of a finite value, never beyond 0x7F80FFFF: there is room for the sum.
        rounded = np.int32(np.int32(bits + 0x7FFF + odd) >> 16)
        rounded = min(rounded, np.int32(0x7F7F))
        quiet = np.int32(bits >> 16 | 0x40)
        special = np.int32(0x7F80) if bits == _INFINITY else quiet
        half = rounded if bits < _INFINITY else special
        halves[i] = half | ((values[i] >> 16) & 0x8000)


@kernel
def _to_float16(values: FloatBits, halves: Halves) -> None:
    for i in range(len(values)):
        bits = np.int32(values[i] & _MAGNITUDE)
        odd = np.int32((bits >> 13) & 1)
        normal = np.int32(np.int32(bits - (112 << 23) + 0xFFF + odd) >> 13)
        small = np.int32(_plus_half(bits) - _HALF)
        rounded = min(normal, np.int32(0x7BFF)) if bits >= 113 << 23 else small
        quiet = np.int32(0x7E00 | ((bits >> 13) & 0x3FF))
        special = np.int32(0x7C00) if bits == _INFINITY else quiet
        half = rounded if bits < _INFINITY else special
        halves[i] = half | ((values[i] >> 16) & 0x8000)


@kernel
def _read_bfloat16(halves: Halves, values: FloatBits) -> bool:
    largest = np.int32(0)
    for i in range(len(values)):
        bits = np.int32(np.int32(halves[i]) << 16)
        values[i] = bits
        largest = max(largest, np.int32(bits & _MAGNITUDE))
    return bool(largest < _INFINITY)
