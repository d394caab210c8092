"""Values as a sign and a level in a few bits: 2.5 ns to encode, 0.7 ns to decode.

`reference.log` describes the format. Encoding passes over the values three times: for
the range of their magnitudes, for their cells, and to count them. Codes are looked up
by cell. Finding the levels takes some 10 us.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import FloatBits, Floats, Octets, Words
from thinwire.kernels.cpu.bits import all_zero_from, as_section, as_words
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.cpu.intrinsics import float_bits
from thinwire.kernels.reference.log import (
    CELL_BITS,
    INFINITY,
    LEVEL_BITS,
    MANTISSA,
    MOVES,
    SUM_BITS,
    check_levels,
    nbytes_log,
)
from thinwire.kernels.sections import check_length, check_spare

Totals = NDArray[np.int64]

_MAGNITUDE = 0x7FFFFFFF
# The count of a cell and the sum of the low bits of its magnitudes share an int64. For
# this many values neither overflows.
_BATCH = 1 << 20
_ONE = 1 << 40
# The first cell of negative values. Either sign has at most 2**11 + 2 cells, of which
# the last is for values that are coded as zero.
_NEGATIVE = 1 << 12


def encode_log(values: Tensor, bits: int) -> Tensor:
    nbytes = nbytes_log(len(values), bits)
    words = np.empty(-(-nbytes // 8), np.uint64)
    codes = 1 << (bits - 2)  # the first word of codes: a word has two levels
    levels = words[:codes].view(np.float32)
    _encode(values.contiguous().numpy().view(np.int32), bits, levels, words[codes:])
    return as_section(words, 8 * nbytes)


def decode_log(
    section: Tensor, nnz: int, bits: int, *, errors: Tensor | None = None
) -> Tensor:
    check_length(section, 8 * nbytes_log(nnz, bits))
    words = as_words(section, -(-nbytes_log(nnz, bits) // 8))
    codes = 1 << (bits - 2)  # the first word of codes: a word has two levels
    values = torch.empty(nnz)
    levels = words[:codes].view(np.float32)
    check_levels(_decode(levels, words[codes:], bits, values.numpy()))
    check_spare(all_zero_from(words[codes:], nnz * bits))
    return values


@kernel
@allocating
def _encode(values: FloatBits, bits: int, levels: Floats, words: Words) -> None:
    levels[:] = 0
    low, high, others = _range(values)
    shift = 0
    while (high - low) >> (shift + CELL_BITS):
        shift += 1
    first = low >> shift
    size = (high >> shift) - first + 1
    cells = np.empty(len(values), np.uint16)
    _write_cells(values, first, shift, size, cells)
    exponent = max(high >> 23, 1)
    counts, sums = _cumulate(values, cells, first, shift, size, exponent)
    lowest = 1 if others else 0
    bounds = np.empty(len(levels) - lowest + 1, np.int64)
    table = np.zeros(2 * _NEGATIVE, np.uint8)
    if high > 0:
        _find_boundaries(counts, sums, first, shift, exponent, bounds)
        _write_levels(counts, sums, exponent, bounds, levels[lowest:])
        for j in range(len(bounds) - 1):
            table[bounds[j] : bounds[j + 1]] = j + lowest
    table[_NEGATIVE:] = table[:_NEGATIVE] | np.uint8(1 << (bits - 1))
    _write_codes(cells, table, bits, words)


@part
def _range(values: FloatBits) -> Any:
    """The least and the largest magnitude that is neither zero nor infinite or NaN.

    Also returns whether there are values without such a magnitude.
    """
    low = np.int32(INFINITY)
    high = np.int32(0)
    others = np.int32(0)
    for i in range(len(values)):
        magnitude = np.int32(values[i] & _MAGNITUDE)
        other = (magnitude == 0) | (magnitude >= INFINITY)
        low = min(low, np.int32(INFINITY) if other else magnitude)
        high = max(high, np.int32(0) if other else magnitude)
        others |= np.int32(other)
    return np.int64(min(low, high)), np.int64(high), others


@part
def _write_cells(
    values: FloatBits, first: int, shift: int, size: int, cells: NDArray[np.uint16]
) -> None:
    """Write the cell of each value to `cells`; `size` for values coded as zero."""
    # Kept at 32 bits, twice as many values fit in a vector.
    begin, none = np.int32(first), np.int32(size)
    for i in range(len(values)):
        magnitude = np.int32(values[i] & _MAGNITUDE)
        other = (magnitude == 0) | (magnitude >= INFINITY)
        cell = np.int32(np.int32(magnitude >> np.int32(shift)) - begin)
        sign = np.int32((values[i] >> 31) & _NEGATIVE)
        cells[i] = (none if other else cell) | sign


@part
@allocating
def _cumulate(
    values: FloatBits,
    cells: NDArray[np.uint16],
    first: int,
    shift: int,
    size: int,
    exponent: int,
) -> tuple[Totals, Totals]:
    """For each cell, the number of values in the cells before it, and their sum."""
    counts = np.zeros(size + 1, np.int64)
    sums = np.zeros(size + 1, np.int64)
    both = np.empty(size + 1, np.int64)
    rest = (1 << shift) - 1
    for start in range(0, len(values), _BATCH):
        both[:] = 0
        for i in range(start, min(start + _BATCH, len(values))):
            both[cells[i] & (_NEGATIVE - 1)] += _ONE + (np.int64(values[i]) & rest)
        for c in range(size):
            counts[c] += both[c] >> 40
            sums[c] += both[c] & (_ONE - 1)
    count_before = 0
    sum_before = 0
    for c in range(size):
        begin = (first + c) << shift
        cell_exponent = max(begin >> 23, 1)
        significand = begin & MANTISSA | (1 << 23) if begin >> 23 else begin
        total = (counts[c] * significand + sums[c]) << (SUM_BITS - 23)
        total >>= min(exponent - cell_exponent, 63)
        counts[c], count_before = count_before, count_before + counts[c]
        sums[c], sum_before = sum_before, sum_before + total
    counts[size] = count_before
    sums[size] = sum_before
    return counts, sums


@part
def _one_level_per_cell(counts: Totals, bounds: Totals) -> bool:
    """Give each cell that has values a level; False if there are too few levels.

    Writes the first cell of each level to `bounds`.
    """
    found = 0
    for c in range(len(counts) - 1):
        if counts[c + 1] > counts[c]:
            if found == len(bounds) - 1:
                return False
            bounds[found] = c
            found += 1
    bounds[found:] = len(counts) - 1
    return True


@part
def _find_boundaries(
    counts: Totals, sums: Totals, first: int, shift: int, exponent: int, bounds: Totals
) -> None:
    """Write the first cell of each level, and the end of the last, to `bounds`."""
    size = len(counts) - 1
    count = len(bounds) - 1
    if _one_level_per_cell(counts, bounds):
        return
    for j in range(count + 1):
        bounds[j] = (j * size + count - 1) // count
    unit = _power_of_two(exponent - 127 - SUM_BITS)
    half = (1 << shift) >> 1
    for _ in range(MOVES // count):
        moved = False
        begin = bounds[0]
        below = 0.0
        for j in range(count):
            end = bounds[j + 1]
            n = counts[end] - counts[begin]
            total = sums[end] - sums[begin]
            mean = max(np.float64(total) / np.float64(n), below) if n else below
            if j:
                middle = np.float32((mean + below) * 0.5 * unit)
                to: Any = ((np.int64(float_bits(middle)) + half) >> shift) - first
                to = min(max(to, 1), size)
                moved |= to != bounds[j]
                bounds[j] = to
            begin = end
            below = mean
        if not moved:
            break


@part
def _write_levels(
    counts: Totals, sums: Totals, exponent: int, bounds: Totals, levels: Floats
) -> None:
    """Write the mean of the cells between neighbouring boundaries to `levels`."""
    scale = 1 << (SUM_BITS - LEVEL_BITS)
    unit = _power_of_two(exponent - 127 - LEVEL_BITS)
    level = 0
    for j in range(len(levels)):
        n = counts[bounds[j + 1]] - counts[bounds[j]]
        if n:
            total = sums[bounds[j + 1]] - sums[bounds[j]]
            mean = (total + n * (scale >> 1)) // (n * scale)
            level = max(level, min(mean, (2 << LEVEL_BITS) - 1))
        levels[j] = np.float32(np.float64(level) * unit)


@part
def _power_of_two(exponent: int) -> float:
    power = 1.0
    for _ in range(abs(exponent)):
        power *= 2.0
    return power if exponent >= 0 else 1.0 / power


@part
def _write_codes(
    cells: NDArray[np.uint16], table: Octets, bits: int, words: Words
) -> None:
    """Write the code of each value's cell; eight codes are a whole number of bytes."""
    whole = len(cells) // 8 * 8
    group = 8 * bits
    word = np.uint64(0)
    filled = 0
    at = 0
    for i in range(0, whole, 8):
        codes = np.uint64(0)
        for j in range(8):
            codes |= np.uint64(table[cells[i + j]]) << np.uint64(j * bits)
        word |= codes << np.uint64(filled)
        filled += group
        if filled >= 64:
            words[at] = word
            at += 1
            filled -= 64
            word = codes >> np.uint64(group - filled) if filled else np.uint64(0)
    for i in range(whole, len(cells)):
        code = np.uint64(table[cells[i]])
        word |= code << np.uint64(filled)
        filled += bits
        if filled >= 64:
            words[at] = word
            at += 1
            filled -= 64
            word = code >> np.uint64(bits - filled)
    if filled > 0:
        words[at] = word


@kernel
@allocating
def _decode(levels: Floats, words: Words, bits: int, values: Floats) -> bool:
    """Decode to `values`; returns whether the levels are valid.

    `words` must hold all codes.
    """
    count = len(levels)
    table = np.empty(2 * count, np.float32)
    last = np.int64(0)
    right = True
    for j in range(count):
        level: Any = np.int64(float_bits(levels[j]))
        right &= last <= level < INFINITY
        last = level
        table[j] = levels[j]
        table[count + j] = -levels[j]
    if not right:
        return False
    mask = np.uint64(2 * count - 1)
    whole = len(values) // 8 * 8
    group = 8 * bits
    word = np.uint64(0)
    left = 0
    at = 0
    for i in range(0, whole, 8):
        codes = word
        if left < group:
            word = words[at]
            at += 1
            codes |= word << np.uint64(left)
            taken = group - left
            word = word >> np.uint64(taken) if taken < 64 else np.uint64(0)
            left += 64
        else:
            word >>= np.uint64(group)
        left -= group
        for j in range(8):
            values[i + j] = table[np.int64((codes >> np.uint64(j * bits)) & mask)]
    for i in range(whole, len(values)):
        at, bit = i * bits >> 6, i * bits & 63
        code = words[at] >> np.uint64(bit)
        if bit + bits > 64:
            code |= words[at + 1] << np.uint64(64 - bit)
        values[i] = table[np.int64(code & mask)]
    return True
