"""Whole vectors: largest magnitudes, and elements of at least some magnitude."""

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.arrays import Bits, Gradient, array_of, place_of
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.lanes import magnitude_bits
from thinwire.kernels.cpu.passes import mark
from thinwire.kernels.cpu.peel import ones_of
from thinwire.kernels.reference import dense as reference


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    if vector.dtype not in (torch.float32, torch.bfloat16):
        return reference.magnitudes.reference(vector, bounds)
    wide = vector.dtype == torch.float32
    bits = vector.view(torch.int32 if wide else torch.uint16)
    peaks = torch.empty(bounds.numel() - 1, dtype=torch.int64)
    _segment_peaks(array_of(bits), array_of(bounds.long()), array_of(peaks))
    largest = (peaks if wide else peaks << 16).to(torch.int32).view(torch.float32)
    return largest.nan_to_num_(nan=float("inf"), posinf=float("inf"))


def row_peaks(vector: Tensor, width: int) -> Tensor:
    if vector.dtype != torch.float32:
        return reference.row_peaks.reference(vector, width)
    peaks = torch.empty(-(-vector.numel() // width), dtype=torch.int32)
    _row_peaks(array_of(vector.view(torch.int32)), width, array_of(peaks))
    largest = peaks.view(torch.float32)
    return largest.nan_to_num_(nan=float("inf"), posinf=float("inf"))


def at_least(x: Tensor, least: float) -> Tensor:
    bits = max(int(np.float32(least).view(np.int32)), 1)
    place = place_of(x)
    words = np.empty(-(-x.numel() // 64), np.int64)
    mark(place, words, bits)
    return ones_of(words.view(np.uint64), x.numel())


@kernel
def _row_peaks(vector: Gradient, width: int, result: Gradient) -> None:
    """The largest magnitude bits of each `width` elements, the last ones fewer."""
    for i in range(len(result)):
        result[i] = _peak(vector[i * width : (i + 1) * width])


@kernel
def _segment_peaks(vector: Gradient, bounds: Bits, result: Bits) -> None:
    """The largest magnitude bits of each segment, in the width of the dtype."""
    for i in range(len(result)):
        segment = vector[max(bounds[i], 0) : max(bounds[i + 1], 0)]
        result[i] = _peak(segment) if len(segment) > 0 else 0


@part
def _peak(vector: Gradient) -> int:
    """The largest magnitude bits; vectors of them, as nothing is widened."""
    peak = magnitude_bits(vector, 0)
    for i in range(1, len(vector)):
        peak = max(peak, magnitude_bits(vector, i))
    return peak  # type: ignore[no-any-return]
