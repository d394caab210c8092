"""Values in a few bits, a sign and a level: read in one launch, written in six.

`reference.log` describes the format. To encode, all programs find the range of the
magnitudes (`_range`) and count them by cell (`_count`), in several tables to avoid
contention. One program adds these up (`_cumulate`). One warp moves the levels in rounds
(`_move`), which takes most of the time. Then each value finds its level (`_number`).
Sums are integers, so the order of programs changes no bit. Nothing waits for the
device.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.bits import as_words, pack, unpacked
from thinwire.kernels.cuda.launch import EXACT, cdiv, kernel
from thinwire.kernels.deferred_errors import must_raise
from thinwire.kernels.reference import log as reference
from thinwire.kernels.sections import check_length

SPAN: Any = tl.constexpr(512)
INFINITY: Any = tl.constexpr(reference.INFINITY)
MANTISSA: Any = tl.constexpr(reference.MANTISSA)
CELL_BITS: Any = tl.constexpr(reference.CELL_BITS)
MOVES: Any = tl.constexpr(reference.MOVES)
SUM_BITS: Any = tl.constexpr(reference.SUM_BITS)
LEVEL_BITS: Any = tl.constexpr(reference.LEVEL_BITS)
MOST: Any = tl.constexpr((2 << reference.LEVEL_BITS) - 1)

# At most 2**11 + 1 cells are in use.
CELLS: Any = tl.constexpr(1 << 12)
# A count, and the sum of the magnitudes' low bits below 2**20 that a cell leaves out,
# in one number: neither overflows for this many values.
_BATCH = 1 << 20
_TABLES = 16

# The words that launches share: of the magnitudes the least, counted from
# infinity down, and the largest; whether some values have none; the cells in use.
DEPTH: Any = tl.constexpr(0)
HIGH: Any = tl.constexpr(1)
OTHERS: Any = tl.constexpr(2)
OCCUPIED: Any = tl.constexpr(3)


@kernel
def _magnitudes(values, i, nnz) -> Any:
    """The bits of values without the sign, and which of them are coded by level."""
    word = tl.load(values + i, mask=i < nnz, other=0)
    magnitude = word & 0x7FFFFFFF
    return word, magnitude, (magnitude > 0) & (magnitude < INFINITY)


@kernel
def _cut(shared) -> Any:
    """The first cell, how many low bits a cell leaves out, and the last cell."""
    high = tl.load(shared + HIGH)
    low = tl.minimum(INFINITY - tl.load(shared + DEPTH), high)
    length = tl.sum(((high - low) >> tl.arange(0, 32) > 0).to(tl.int32))
    shift = tl.maximum(length - CELL_BITS, 0)
    return low >> shift, shift, high >> shift


@kernel
def _range(values, shared, nnz) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    _, magnitude, coded = _magnitudes(values, i, nnz)
    # All begin as zero, and grow.
    depth = tl.max(tl.where(coded, INFINITY - magnitude, 0))
    high = tl.max(tl.where(coded, magnitude, 0))
    others = tl.max(((i < nnz) & ~coded).to(tl.int32))
    tl.atomic_max(shared + DEPTH, depth, sem="relaxed")
    tl.atomic_max(shared + HIGH, high, sem="relaxed")
    tl.atomic_max(shared + OTHERS, others, sem="relaxed")


@kernel
def _count(values, shared, tables, number, nnz) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    first, shift, _ = _cut(shared)
    _, magnitude, coded = _magnitudes(values, i, nnz)
    cell = (magnitude >> shift) - first
    rest = magnitude & ((1 << shift) - 1)
    table = tables + (tl.program_id(0) % number) * CELLS
    each = rest.to(tl.int64) + (1 << 40)
    tl.atomic_add(table + cell, each, mask=coded, sem="relaxed")


@kernel
def _cumulate(
    shared, tables, counts, sums, bounds, number, levels: tl.constexpr
) -> None:
    """How many values lie before each cell, and the sum of their magnitudes.

    And the cells in use, as far as there are levels for them.
    """
    cell = tl.arange(0, CELLS)
    count = tl.zeros([CELLS], tl.int64)
    rest = tl.zeros([CELLS], tl.int64)
    for t in range(number):
        both = tl.load(tables + t * CELLS + cell)
        count += both >> 40
        rest += both & ((1 << 40) - 1)
    first, shift, _ = _cut(shared)
    # All magnitudes of a cell have one exponent: they are whole numbers of one unit.
    start = (first + cell).to(tl.int64) << shift
    own = start >> 23
    significand = tl.where(own > 0, (start & MANTISSA) | (1 << 23), start)
    largest = tl.maximum(tl.load(shared + HIGH) >> 23, 1)
    back = tl.minimum(tl.maximum(largest - tl.maximum(own, 1), 0), 63)
    total = ((count * significand + rest) << (SUM_BITS - 23)) >> back
    tl.store(counts + cell, tl.cumsum(count) - count)
    tl.store(sums + cell, tl.cumsum(total) - total)
    used = (count > 0).to(tl.int32)
    at = tl.cumsum(used) - used
    tl.store(bounds + at, cell, mask=(used > 0) & (at < levels))
    tl.store(shared + OCCUPIED, tl.sum(used))


@kernel
def _larger(a, b) -> Any:
    return tl.maximum(a, b)


@kernel
def _unit(exponent, places: tl.constexpr) -> Any:
    """A power of two, from its bits."""
    bits = (exponent - (127 + places) + 1023).to(tl.int64) << 52
    return bits.to(tl.float64, bitcast=True)


@kernel
def _mean(counts, sums, begin, end, inside) -> Any:
    """Of the cells from `begin` to `end`; of none, that of the level below, or zero."""
    count = tl.load(counts + end) - tl.load(counts + begin)
    total = tl.load(sums + end) - tl.load(sums + begin)
    some = inside & (count > 0)
    mean = total.to(tl.float64) / tl.where(some, count, 1).to(tl.float64)
    return tl.associative_scan(tl.where(some, mean, 0.0), 0, _larger)


@kernel
def _move(shared, counts, sums, bounds, section, levels: tl.constexpr) -> None:
    """The boundaries of levels, in cells, and the levels themselves."""
    j = tl.arange(0, levels)
    first, shift, last = _cut(shared)
    high = tl.load(shared + HIGH)
    lowest = tl.load(shared + OTHERS)
    size = last - first + 1
    count = levels - lowest
    occupied = tl.load(shared + OCCUPIED)
    exponent = tl.maximum(high >> 23, 1)
    unit = _unit(exponent, SUM_BITS)
    half = ((1 << shift) >> 1).to(tl.int32)
    # A boundary in each lane; behind the last one all stand at the end.
    even = (j * size + count - 1) // count
    found = tl.load(bounds + j, mask=j < occupied, other=0)
    bound = tl.where(occupied <= count, tl.where(j < occupied, found, size), even)
    bound = tl.where(j < count, bound, size)
    tl.debug_barrier()
    tl.store(bounds + j, bound)
    tl.store(bounds + levels, size)
    tl.debug_barrier()
    rounds = tl.where(occupied <= count, 0, MOVES // count)
    while rounds > 0:
        below = tl.load(bounds + tl.maximum(j - 1, 0))
        above = tl.load(bounds + j + 1)
        upper = _mean(counts, sums, bound, above, j < count)
        lower = _mean(counts, sums, below, bound, (j > 0) & (j < count))
        middle = ((upper + lower) * 0.5 * unit).to(tl.float32)
        to = ((middle.to(tl.int32, bitcast=True) + half) >> shift) - first
        to = tl.minimum(tl.maximum(to, 1), size)
        to = tl.where((j > 0) & (j < count), to, bound)
        moved = tl.sum((to != bound).to(tl.int32))
        bound = to
        tl.debug_barrier()
        tl.store(bounds + j, bound)
        tl.debug_barrier()
        rounds = tl.where(moved > 0, rounds - 1, 0)
    above = tl.load(bounds + j + 1)
    n = tl.load(counts + above) - tl.load(counts + bound)
    total = tl.load(sums + above) - tl.load(sums + bound)
    units = n << (SUM_BITS - LEVEL_BITS)
    whole = (total + (units >> 1)) // tl.maximum(units, 1)
    # Rounded up from below, the largest of all magnitudes would be infinite.
    whole = tl.minimum(whole, MOST)
    whole = tl.associative_scan(whole, 0, _larger).to(tl.float64)
    level = (whole * _unit(exponent, LEVEL_BITS)).to(tl.float32)
    level = tl.where(high > 0, level, 0.0).to(tl.int32, bitcast=True)
    # Where some values have no magnitude, the lowest level is kept for them.
    tl.store(section + lowest + j, level, mask=lowest + j < levels)
    tl.store(section + j, tl.zeros([levels], tl.int32), mask=j < lowest)


@kernel
def _number(values, shared, bounds, numbers, nnz, bits: tl.constexpr) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    first, shift, _ = _cut(shared)
    word, magnitude, coded = _magnitudes(values, i, nnz)
    cell = (magnitude >> shift) - first
    at = tl.zeros([SPAN], tl.int32)
    for step in tl.static_range(bits - 1):
        # As far as boundaries are not above the cell, by halves.
        on = at + (1 << (bits - 2 - step))
        bound = tl.load(bounds + on, mask=coded, other=0)
        at = tl.where(bound <= cell, on, at)
    number = tl.where(coded, at + tl.load(shared + OTHERS), 0)
    sign = tl.where(word < 0, 1 << (bits - 1), 0)
    tl.store(numbers + i, (number | sign).to(tl.uint8), mask=i < nnz)


def encode_log(values: Tensor, bits: int) -> Tensor:
    nnz, levels, device = len(values), 1 << (bits - 1), values.device
    words = torch.empty(levels + cdiv(nnz * bits, 32), dtype=torch.int32, device=device)
    if nnz == 0:
        return words.zero_().view(torch.uint8)
    given = values.contiguous().view(torch.int32)
    tables = max(_TABLES, cdiv(2 * nnz, _BATCH))
    cleared = torch.zeros(tables * CELLS.value + 2, dtype=torch.int64, device=device)
    shared, counted = cleared[:2].view(torch.int32), cleared[2:]
    counts, sums = (cleared.new_empty(CELLS.value) for _ in range(2))
    bounds = torch.empty(levels + 1, dtype=torch.int32, device=device)
    numbers = torch.empty(nnz, dtype=torch.uint8, device=device)
    grid = (cdiv(nnz, SPAN.value),)
    _range[grid](given, shared, nnz, **EXACT)
    _count[grid](given, shared, counted, tables, nnz, **EXACT)
    lists = (counts, sums, bounds)
    _cumulate[(1,)](
        shared, counted, *lists, tables, levels=levels, num_warps=16, **EXACT
    )
    _move[(1,)](shared, *lists, words, levels=levels, num_warps=1, **EXACT)
    _number[grid](given, shared, bounds, numbers, nnz, bits=bits, **EXACT)
    pack(numbers, words[levels:], bits)
    return words.view(torch.uint8)[: reference.nbytes_log(nnz, bits)]


@kernel
def _decode(
    words, values, invalid, nnz, used, end, bits: tl.constexpr, levels: tl.constexpr
) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    inside = i < nnz
    code = unpacked(words + levels, i, inside, bits)
    level = tl.load(words + (code & (levels - 1)), mask=inside, other=0)
    # The bit above the level's number is the sign.
    sign = (code >> (bits - 1)).to(tl.int32) << 31
    tl.store(values + i, (level | sign).to(tl.float32, bitcast=True), mask=inside)
    if tl.program_id(0) == 0:
        number = tl.arange(0, levels)
        each = tl.load(words + number)
        after = tl.load(words + number + 1, mask=number + 1 < levels, other=INFINITY)
        wrong = (each < 0) | (each >= INFINITY) | (after < each)
        # Behind the bits in use, up to the `end` of the words, there are only zeros.
        at = levels + (used >> 5) + tl.arange(0, 4)
        spare = tl.load(words + at, mask=at < end, other=0).to(tl.int64) & 0xFFFFFFFF
        spare >>= tl.where(tl.arange(0, 4) == 0, used & 31, 0)
        bad = tl.sum(wrong.to(tl.int32)) + tl.sum((spare != 0).to(tl.int32))
        tl.store(invalid, (bad > 0).to(tl.int32))


def decode_log(
    section: Tensor, nnz: int, bits: int, *, errors: Tensor | None = None
) -> Tensor:
    check_length(section, 8 * reference.nbytes_log(nnz, bits))
    values = torch.empty(nnz, device=section.device)
    invalid = torch.empty(1, dtype=torch.int32, device=section.device)
    grid = (max(cdiv(nnz, SPAN.value), 1),)
    form = {"bits": bits, "levels": 1 << (bits - 1)}
    words = as_words(section)
    lengths = (nnz, nnz * bits, len(words))
    _decode[grid](words, values, invalid, *lengths, **form, **EXACT)
    if must_raise(invalid, errors):
        return reference.decode_log.reference(section, nnz, bits)
    return values
