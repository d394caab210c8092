"""Gaps between indices in Rice codes: 2.6 ns an entry to write or to read.

Remainders and quotients are in separate streams. The decoder reads a block's remainders
first, then its quotients by counting zeros, so that neither loop waits for the other.

Loops run over slices because numba checks the sign of a computed index, which prevents
vector instructions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.arrays import Indices, Octets, Words
from thinwire.kernels.cpu.bits import all_zero_from, as_section, as_words
from thinwire.kernels.cpu.compiled import allocating, kernel
from thinwire.kernels.cpu.intrinsics import leading_zeros, trailing_zeros
from thinwire.kernels.reference.rice import check_room, check_widest
from thinwire.kernels.sections import (
    check_ascending,
    check_length,
    check_order,
    check_spare,
    index_dtype,
)

_BLOCK = 256
# The largest of the first of the three widths that are tried.
_WIDEST = 38

_ENDED = -1
_OUTSIDE = -2


def encode_rice(indices: Tensor) -> Tensor:
    listed = indices.contiguous().numpy()
    widths = np.empty(-(-len(listed) // _BLOCK), np.uint8)
    start = 8 * len(widths)
    remainder_bits, unary_bits = _choose(listed, widths)
    check_ascending(unary_bits >= 0)
    end = start + remainder_bits
    words = np.zeros(-(-(end + unary_bits) // 64), np.uint64)
    words.view(np.uint8)[: len(widths)] = widths
    _write(listed, widths, start, end, words)
    return as_section(words, end + unary_bits)


def decode_rice(section: Tensor, size: int, nnz: int) -> Tensor:
    blocks = -(-nnz // _BLOCK)
    check_room(section, 8 * blocks, nnz)
    words = as_words(section, -(-section.numel() // 8))
    widths = words.view(np.uint8)[:blocks]
    widest, remainder_bits = _measure(widths, nnz)
    check_widest(widest)
    start, end = 8 * blocks, 8 * blocks + remainder_bits
    check_room(section, end, nnz)
    indices = torch.empty(nnz, dtype=index_dtype(size))
    end = _read(words, widths, start, end, size, indices.numpy())
    if end == _ENDED:
        raise ValueError(f"fewer gaps than {nnz}")
    check_order(end != _OUTSIDE, size)
    check_length(section, end)
    check_spare(all_zero_from(words, end))
    return indices


@kernel
@allocating
def _choose(indices: Indices, widths: Octets) -> tuple[int, int]:
    """Write the width of each block; returns the bits of remainders and of quotients.

    Returns (-1, -1) if indices do not ascend. Let 2^e be the mean gap plus one, rounded
    down to a power of two: no width makes a block shorter than the best of e - 1, e and
    e + 1.
    """
    gaps = np.empty(_BLOCK, np.int64)
    before: Any = np.int64(-1)
    falls = False
    remainder_bits = 0
    unary_bits = 0
    for block in range(len(widths)):
        start = block * _BLOCK
        count = min(_BLOCK, len(indices) - start)
        here = indices[start : start + count]
        after = here[1:]
        others = gaps[1:count]
        gaps[0] = np.int64(here[0]) - before - 1
        for j in range(len(others)):
            others[j] = np.int64(after[j]) - np.int64(here[j]) - 1
        last: Any = np.int64(here[-1])
        mean = (last - before - count) // count
        before = last
        first = min(max(62 - leading_zeros(np.uint64(mean + 1)), 0), _WIDEST)
        a = 0
        b = count
        c = 2 * count
        for j in range(count):
            gap = gaps[j]
            falls |= gap < 0
            a += gap >> first
            b += gap >> (first + 1)
            c += gap >> (first + 2)
        more = 0 if a <= min(b, c) else 1 if b <= c else 2
        widths[block] = first + more
        remainder_bits += count * (first + more)
        unary_bits += count + min(a, b, c) - more * count
    if falls:
        return -1, -1
    return remainder_bits, unary_bits


@kernel
def _write(
    indices: Indices,
    widths: Octets,
    remainder_start: int,
    unary_start: int,
    words: Words,
) -> None:
    """Write both streams to `words`, which are zero from `remainder_start` on."""
    if len(indices) == 0:
        return
    one = np.uint64(1)
    before: Any = np.int64(-1)
    low = np.uint64(0)
    filled = remainder_start & 63
    low_at = remainder_start >> 6
    high = np.uint64(0)
    position: Any = unary_start
    high_at = unary_start >> 6
    for block in range(len(widths)):
        width: Any = np.int64(widths[block])
        mask = (one << np.uint64(width)) - one
        here = indices[block * _BLOCK : (block + 1) * _BLOCK]
        for j in range(len(here)):
            index: Any = np.int64(here[j])
            gap = np.uint64(index - before - 1)
            before = index
            remainder = gap & mask
            low |= remainder << np.uint64(filled)
            filled += width
            if filled >= 64:
                words[np.uintp(low_at)] |= low
                low_at += 1
                filled -= 64
                low = remainder >> np.uint64(width - filled)
            position += np.int64(gap >> np.uint64(width))
            w = position >> 6
            if w != high_at:
                words[np.uintp(high_at)] |= high
                high = np.uint64(0)
                high_at = w
            high |= one << np.uint64(position & 63)
            position += 1
    words[high_at] |= high
    words[low_at] |= low


@kernel
def _measure(widths: Octets, count: int) -> tuple[int, int]:
    """Returns the largest width, and the number of bits of `count` remainders."""
    widest = 0
    bits = 0
    for block in range(len(widths)):
        width: Any = np.int64(widths[block])
        widest = max(widest, width)
        bits += width * min(_BLOCK, count - block * _BLOCK)
    return widest, bits


@kernel
@allocating
def _read(
    words: Words,
    widths: Octets,
    remainder_start: int,
    unary_start: int,
    size: int,
    indices: Indices,
) -> int:
    """Decode to `indices`; returns where the unary stream ends, or an error code.

    The caller has checked that `words` hold all remainders.
    """
    if len(indices) == 0:
        return 0
    one = np.uint64(1)
    remainders = np.empty(_BLOCK, np.int64)
    low = words[remainder_start >> 6] >> np.uint64(remainder_start & 63)
    left = 64 - (remainder_start & 63)
    low_at = (remainder_start >> 6) + 1
    at = unary_start >> 6
    word = words[at] & (~np.uint64(0) << np.uint64(unary_start & 63))
    base = at << 6
    end = unary_start
    index: Any = np.int64(-1)
    far = False
    for block in range(len(widths)):
        width: Any = np.int64(widths[block])
        mask = (one << np.uint64(width)) - one
        most = size >> width
        here = indices[block * _BLOCK : (block + 1) * _BLOCK]
        for j in range(len(here)):
            value = low
            if left < width:
                low = words[np.uintp(low_at)]
                low_at += 1
                value |= low << np.uint64(left)
                low >>= np.uint64(width - left)
                left += 64
            else:
                low >>= np.uint64(width)
            left -= width
            remainders[j] = np.int64(value & mask)
        for j in range(len(here)):
            while word == 0:
                at += 1
                if at >= len(words):
                    return _ENDED
                word = words[np.uintp(at)]
                base = at << 6
            place = base + trailing_zeros(word)
            word &= word - one
            quotient = place - end
            end = place + 1
            far |= quotient > most
            index += (quotient << width) + remainders[j] + 1
            here[j] = index
        # While no quotient is too large, the last index is the largest.
        if far or index >= size:
            return _OUTSIDE
    return end
