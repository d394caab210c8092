"""Float32 values in 16 bits each, by the whole numbers of the reference."""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.launch import await_others, cdiv, following, kernel
from thinwire.kernels.sections import check_finite

SPAN: Any = tl.constexpr(1024)
INFINITY: Any = tl.constexpr(0x7F800000)


@kernel
def bfloat16_bits(word) -> Any:
    """The bits of the nearest bfloat16, in the low half of a word."""
    bits = word & 0x7FFFFFFF
    # A NaN's sum would carry into the sign: it takes another way.
    finite = tl.minimum(bits, INFINITY)
    rounded = (finite + 0x7FFF + ((finite >> 16) & 1)) >> 16
    rounded = tl.minimum(rounded, 0x7F7F)
    special = tl.where(bits == INFINITY, 0x7F80, (bits >> 16) | 0x40)
    return tl.where(bits < INFINITY, rounded, special) | ((word >> 16) & 0x8000)


@kernel
def rest(value, bf16: tl.constexpr) -> Any:
    """The value minus itself, or minus its bfloat16; NaN if it is not finite."""
    if bf16:
        rounded = bfloat16_bits(value.to(tl.int32, bitcast=True)) << 16
        left = value - rounded.to(tl.float32, bitcast=True)
    else:
        left = value - value
    return left


@kernel
def _to_bfloat16(values, halves, nnz, waiting: tl.constexpr) -> None:
    await_others(waiting, admitting=True)
    first = tl.program_id(0).to(tl.int64) * SPAN
    i = tl.arange(0, SPAN)
    inside = i < nnz - first
    word = tl.load(values + first + i, mask=inside, other=0)
    tl.store(halves + first + i, bfloat16_bits(word).to(tl.int16), mask=inside)


@kernel
def _to_float16(values, halves, nnz, waiting: tl.constexpr) -> None:
    await_others(waiting, admitting=True)
    first = tl.program_id(0).to(tl.int64) * SPAN
    i = tl.arange(0, SPAN)
    inside = i < nnz - first
    word = tl.load(values + first + i, mask=inside, other=0)
    bits = word & 0x7FFFFFFF
    # Ten bits of mantissa remain, fewer below the smallest normal number.
    lost = tl.minimum(tl.maximum(126 - (bits >> 23), 13), 25)
    normal = bits >= 113 << 23
    whole = tl.where(normal, bits - (112 << 23), bits & 0x7FFFFF | 0x800000)
    # The sum of two terms below 2**31 may exceed it.
    wide = whole.to(tl.int64)
    half = (tl.full([SPAN], 1, tl.int64) << (lost - 1)) - 1
    rounded = ((wide + half + ((wide >> lost) & 1)) >> lost).to(tl.int32)
    rounded = tl.minimum(rounded, 0x7BFF)
    quiet = 0x7E00 | ((bits >> 13) & 0x3FF)
    special = tl.where(bits == INFINITY, 0x7C00, quiet)
    found = tl.where(bits < INFINITY, rounded, special) | ((word >> 16) & 0x8000)
    tl.store(halves + first + i, found.to(tl.int16), mask=inside)


@kernel
def _from_bfloat16(halves, values, nnz, invalid, finite: tl.constexpr) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    word = tl.load(halves + i, mask=i < nnz, other=0).to(tl.int32) << 16
    tl.store(values + i, word, mask=i < nnz)
    if finite:
        wrong = tl.sum(((word & 0x7FFFFFFF) >= INFINITY).to(tl.int32)) > 0
        tl.atomic_or(invalid, 1, mask=wrong, sem="relaxed")


def from_bfloat16(section: Tensor, errors: Tensor | None, *, finite: bool) -> Tensor:
    """Values from their bytes; `ValueError` or the flag if one has to be finite."""
    halves = section.view(torch.int16)
    values = torch.empty(len(halves), device=halves.device)
    # The flag itself, so that this is one launch where errors are deferred.
    invalid = halves.new_zeros(1, dtype=torch.int32) if errors is None else errors
    if len(halves):
        grid, words = (cdiv(len(halves), SPAN.value),), values.view(torch.int32)
        _from_bfloat16[grid](halves, words, len(halves), invalid, finite=finite)
    check_finite(not (finite and errors is None and bool(invalid)))
    return values


def to_bfloat16(values: Tensor) -> Tensor:
    return _halves(_to_bfloat16, values).view(torch.bfloat16)


def to_float16(values: Tensor) -> Tensor:
    return _halves(_to_float16, values).view(torch.float16)


def _halves(run: Any, values: Tensor) -> Tensor:
    words = values.contiguous().view(torch.int32)
    halves = torch.empty(len(words), dtype=torch.int16, device=words.device)
    if len(words):
        grid, then = (cdiv(len(words), SPAN.value),), following(words.device)
        run[grid](words, halves, len(words), **then)
    return halves
