"""Values in 8 bits, a scale for every 256 of them: one launch each way."""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.launch import EXACT, cdiv, kernel
from thinwire.kernels.deferred_errors import must_raise
from thinwire.kernels.reference import int8 as reference
from thinwire.kernels.reference.int8 import nbytes_int8
from thinwire.kernels.sections import check_length

BLOCK: Any = tl.constexpr(256)
BLOCKS: Any = tl.constexpr(8)
INFINITY: Any = tl.constexpr(0x7F800000)
LARGEST: Any = tl.constexpr(reference.LARGEST_SCALE)
DROPPED: Any = tl.constexpr(reference.DROPPED)
# Added and taken away, it leaves the nearest whole number, ties to even.
ROUNDER: Any = tl.constexpr(1.5 * 2**23)


@kernel
def _encode(values, scales, numbers, nnz) -> None:
    b = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    i = b[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    word = tl.load(values + i, mask=i < nnz, other=0)
    bits = word & 0x7FFFFFFF
    finite = bits < INFINITY
    value = tl.where(finite, word, 0).to(tl.float32, bitcast=True)
    largest = tl.max(tl.where(finite, bits, 0), axis=1).to(tl.float32, bitcast=True)
    quotient = tl.div_rn(largest, tl.full([BLOCKS], 127.0, tl.float32))
    scale = (quotient.to(tl.int32, bitcast=True) + DROPPED) & ~DROPPED
    scale = tl.minimum(scale, LARGEST)
    unit = tl.where(scale > 0, scale.to(tl.float32, bitcast=True), 1.0)
    unit = tl.broadcast_to(unit[:, None], [BLOCKS, BLOCK])
    step = (tl.div_rn(value, unit) + ROUNDER) - ROUNDER
    step = tl.minimum(tl.maximum(step, -127.0), 127.0)
    tl.store(scales + b, (scale >> 16).to(tl.int16), mask=b * BLOCK < nnz)
    tl.store(numbers + i, step.to(tl.int8), mask=i < nnz)


@kernel
def _decode(scales, numbers, values, invalid, nnz) -> None:
    b = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    i = b[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = b * BLOCK < nnz
    # Bytes, because a section may begin anywhere.
    low = tl.load(scales + 2 * b, mask=there, other=0).to(tl.int32)
    half = (tl.load(scales + 2 * b + 1, mask=there, other=0).to(tl.int32) << 8) | low
    number = tl.load(numbers + i, mask=i < nnz, other=0).to(tl.int32)
    scale = (half << 16).to(tl.float32, bitcast=True)
    tl.store(values + i, number.to(tl.float32) * scale[:, None], mask=i < nnz)
    wrong = tl.sum((half > (LARGEST >> 16)).to(tl.int32)) > 0
    wrong = wrong | (tl.sum((number < -127).to(tl.int32)) > 0)
    tl.atomic_or(invalid, 1, mask=wrong, sem="relaxed")


def encode_int8(values: Tensor) -> Tensor:
    nnz = len(values)
    blocks = cdiv(nnz, BLOCK.value)
    section = torch.empty(nbytes_int8(nnz), dtype=torch.uint8, device=values.device)
    if nnz:
        words = values.contiguous().view(torch.int32)
        scales = section[: 2 * blocks].view(torch.int16)
        numbers = section[2 * blocks :].view(torch.int8)
        grid = (cdiv(blocks, BLOCKS.value),)
        _encode[grid](words, scales, numbers, nnz, **EXACT)
    return section


def decode_int8(section: Tensor, nnz: int, *, errors: Tensor | None = None) -> Tensor:
    check_length(section, 8 * nbytes_int8(nnz))
    blocks = cdiv(nnz, BLOCK.value)
    values = torch.empty(nnz, device=section.device)
    invalid = torch.zeros(1, dtype=torch.int32, device=section.device)
    if nnz:
        given = section.contiguous()
        numbers = given[2 * blocks :].view(torch.int8)
        grid = (cdiv(blocks, BLOCKS.value),)
        _decode[grid](given, numbers, values, invalid, nnz, **EXACT)
    if must_raise(invalid, errors):
        return reference.decode_int8.reference(section, nnz)
    return values
