"""Whole numbers in a fixed number of bits each, a word of 32 bits at a time.

A word is gathered from the few numbers that reach into it, so nothing is cleared
beforehand and no two programs write the same word.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.launch import EXACT, cdiv, kernel
from thinwire.kernels.reference import bits as reference
from thinwire.kernels.reference.bits import check_room, check_width

SPAN: Any = tl.constexpr(512)


@kernel
def packed_word(values, w, count, width: tl.constexpr) -> Any:
    """Word `w` of the packed values, in the low half.

    In the type of `w`: 32 bits will do where all bits can be numbered by them.
    """
    bit = w * 32
    first = bit // width
    word = tl.zeros_like(w)
    for e in tl.static_range(32 // width + 2):
        i = first + e
        at = i * width - bit
        value = tl.load(values + i, mask=(i < count) & (at < 32), other=0)
        value = value.to(w.dtype) & ((1 << width) - 1)
        # A number may begin before the word, by less than its width.
        back = tl.where(at < 0, -at, 0)
        ahead = tl.where(at < 0, 0, tl.minimum(at, 31))
        word |= (value >> back) << ahead
    return word


@kernel
def unpacked(words, i, inside, width: tl.constexpr) -> Any:
    """Number `i` of those packed in `width` bits, at most 32."""
    bit = i * width
    w, shift = bit >> 5, (bit & 31).to(tl.int64)
    low = tl.load(words + w, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF
    more = inside & (shift + width > 32)
    high = tl.load(words + w + 1, mask=more, other=0).to(tl.int64)
    return ((low | (high << 32)) >> shift) & ((1 << width) - 1)


@kernel
def _pack(values, words, count, width: tl.constexpr) -> None:
    w = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    word = packed_word(values, w, count, width)
    inside = (w * 32) // width < count
    tl.store(words + w, word.to(tl.int32), mask=inside)


@kernel
def _unpack(words, values, count, width: tl.constexpr) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    inside = i < count
    tl.store(values + i, unpacked(words, i, inside, width), mask=inside)


def pack(values: Tensor, words: Tensor, width: int) -> None:
    """Write whole numbers into words, of which there are as many as they need."""
    grid = (cdiv(len(words), SPAN.value),)
    _pack[grid](values, words, len(values), width=width, **EXACT)


def pack_bits(values: Tensor, width: int) -> Tensor:
    check_width(width)
    nbits = len(values) * width
    words = torch.empty(cdiv(nbits, 32), dtype=torch.int32, device=values.device)
    if len(words):
        pack(values.contiguous(), words, width)
    return words.view(torch.uint8)[: cdiv(nbits, 8)]


def unpack_bits(section: Tensor, count: int, width: int) -> Tensor:
    check_room(section, count, width)
    if width > 32:
        return reference.unpack_bits.reference(section, count, width)
    values = torch.zeros(count, dtype=torch.int64, device=section.device)
    if count and width:
        grid = (cdiv(count, SPAN.value),)
        words = as_words(section)
        _unpack[grid](words, values, count, width=width, **EXACT)
    return values


def as_words(section: Tensor) -> Tensor:
    """The bytes as words of 32 bits, zeros at the end; copied if they lie oddly."""
    whole = section.numel() % 4 == 0 and section.is_contiguous()
    if whole and section.data_ptr() % 4 == 0 and section.storage_offset() % 4 == 0:
        return section.view(torch.int32)
    room = section.new_zeros(cdiv(section.numel(), 4) * 4)
    room[: section.numel()] = section
    return room.view(torch.int32)
