"""The k largest of listed candidates, exactly, in four launches without sorting.

Candidates are counted in 256 bins from the threshold on, each 0.2 % wide. Those of the
bin that contains the k-th largest are counted again, one count per magnitude.
Meanwhile tiles are put in order: the sums of their counts are the places of their
candidates in an ascending list. In that list each batch counts its selected elements,
and writes them after those of the batches before it: of equal magnitudes, the first
ones have the smaller index.

If the list is not sufficient (fewer than k candidates, more than its capacity, or the
k-th far above the threshold), the block is left to `dense_select`. No launch waits for
the host: each reads what the one before it has written.
"""

from typing import Any

import triton.language as tl

from thinwire.kernels.cuda.halves import rest
from thinwire.kernels.cuda.launch import arrive, await_others, kernel, position, reach
from thinwire.kernels.cuda.mark import (
    BINS,
    COARSE,
    COUNT,
    CROWD,
    DENSE,
    KTH,
    OCTAVE,
    REST,
    STATE,
    THRESHOLD,
    TICKETS,
    TIES,
    TILE,
    WINDOW,
    extent,
)

# Bits of a magnitude below those of a coarse bin; half of them are counted first.
FINE_BITS: Any = tl.constexpr(14)
FINE_MASK: Any = tl.constexpr((1 << 14) - 1)
HALF_BITS: Any = tl.constexpr(7)
HALF: Any = tl.constexpr(128)
# Counts of a block: coarse bins, halves, and every magnitude of one coarse bin.
HALVES: Any = tl.constexpr(256)
EVERY: Any = tl.constexpr(256 + 128)
# After them, the candidates of each crowd of tiles.
COUNTS: Any = tl.constexpr(256 + 128 + (1 << 14))

# Candidates of a program, and tiles of one that puts tiles in order.
BATCH: Any = tl.constexpr(2048)
# Of a batch: batches whose counts are read at once.
MANY: Any = tl.constexpr(1024)


@kernel
def _batch(found, q, capacity, count) -> Any:
    i = tl.program_id(0) * BATCH + tl.arange(0, BATCH)
    inside = i < count
    entry = tl.load(found + q.to(tl.int64) * capacity + i, mask=inside, other=0)
    return i, entry, inside


@kernel
def _order(
    g,
    q,
    listed,
    shifts,
    tiles,
    crowds,
) -> None:
    """The distance of each tile's candidates from their place in ascending order."""
    t = g * CROWD + tl.arange(0, CROWD)
    before = tl.zeros([CROWD], tl.int32)
    for first in range(0, g, CROWD):
        other = first + tl.arange(0, CROWD)
        before += tl.load(crowds + other, mask=other < g, other=0)
    at = q.to(tl.int64) * tiles + t
    entry = tl.load(listed + at, mask=t < tiles, other=0)
    size = entry.to(tl.int32)
    place = tl.sum(before) + tl.cumsum(size) - size
    tl.store(shifts + at, place - (entry >> 32).to(tl.int32), mask=t < tiles)


@kernel
def count_coarse(
    rows,
    state,
    found,
    capacity,
    cleared,
    words,
    listed,
    shifts,
    tiles,
    batches,
    waiting: tl.constexpr,
) -> None:
    """Find the bin that contains the k-th largest; if there is none, set DENSE.

    Programs beyond the last batch put tiles in order.
    """
    await_others(waiting, admitting=True)
    row = rows + 3 * tl.program_id(1)
    q, k = tl.load(row).to(tl.int32), tl.load(row + 1).to(tl.int32)
    block_state = state + q * STATE
    count, low = tl.load(block_state + COUNT), tl.load(block_state + THRESHOLD)
    counts = cleared + q.to(tl.int64) * words
    p = tl.program_id(0)
    if p >= batches:
        _order(p - batches, q, listed, shifts, tiles, counts + COUNTS)
    else:
        every = tl.arange(0, BINS)
        enough = (count >= k) & (count <= capacity)
        if enough & (p * BATCH < count):
            _, entry, inside = _batch(found, q, capacity, count)
            above = (entry.to(tl.int32) & 0x7FFFFFFF) - low
            # Most are beyond the bins, and need not be counted one by one.
            near = inside & (above < ((BINS - 1) << FINE_BITS))
            some = tl.histogram(above >> FINE_BITS, BINS, mask=near)
            beyond = tl.sum((inside & ~near).to(tl.int32))
            some += tl.where(every == BINS - 1, beyond, 0)
            tl.atomic_add(counts + every, some, mask=some > 0, sem="relaxed")
        if arrive(block_state + TICKETS + 1) == batches - 1:
            some = tl.load(counts + every, cache_modifier=".cg")
            b, rest = reach(some, k, BINS)
            tl.store(block_state + COARSE, b)
            tl.store(block_state + REST, rest)
            # The last bin has no upper end.
            tl.store(block_state + DENSE, 1 - (enough & (b < BINS - 1)).to(tl.int32))


@kernel
def count_fine(
    rows,
    state,
    found,
    capacity,
    cleared,
    words,
    shifts,
    ordered,
    tiles,
    waiting: tl.constexpr,
) -> None:
    """Find the k-th largest, and how many of exactly its magnitude to take.

    Candidates are also copied to their places in ascending order.
    """
    await_others(waiting, admitting=True)
    q = tl.load(rows + 3 * tl.program_id(1)).to(tl.int32)
    block_state = state + q * STATE
    if tl.load(block_state + DENSE) == 0:
        count, low = tl.load(block_state + COUNT), tl.load(block_state + THRESHOLD)
        b = tl.load(block_state + COARSE)
        counts = cleared + q.to(tl.int64) * words
        if tl.program_id(0) * BATCH < count:
            i, entry, inside = _batch(found, q, capacity, count)
            tile = (entry >> 32).to(tl.int32) // TILE
            shift = tl.load(shifts + q.to(tl.int64) * tiles + tile, mask=inside)
            tl.store(
                ordered + q.to(tl.int64) * capacity + i + shift, entry, mask=inside
            )
            above = (entry.to(tl.int32) & 0x7FFFFFFF) - low
            inside = inside & (above >> FINE_BITS == b)
            above = above & FINE_MASK
            half = counts + HALVES + (above >> HALF_BITS)
            tl.atomic_add(half, 1, mask=inside, sem="relaxed")
            tl.atomic_add(counts + EVERY + above, 1, mask=inside, sem="relaxed")
        if arrive(block_state + TICKETS + 2) == tl.num_programs(0) - 1:
            lane = tl.arange(0, HALF)
            halves = tl.load(counts + HALVES + lane, cache_modifier=".cg")
            h, rest = reach(halves, tl.load(block_state + REST), HALF)
            each = counts + EVERY + (h << HALF_BITS) + lane
            f, ties = reach(tl.load(each, cache_modifier=".cg"), rest, HALF)
            kth = low + (b << FINE_BITS) + (h << HALF_BITS) + f
            tl.store(block_state + KTH, kth)
            tl.store(block_state + TIES, ties)
            tl.store(block_state + WINDOW, tl.maximum(kth - OCTAVE, 0))


@kernel
def _larger_and_equal(entry, inside, kth) -> Any:
    key = entry.to(tl.int32) & 0x7FFFFFFF
    return inside & (key > kth), inside & (key == kth)


@kernel
def count_given(
    rows,
    state,
    ordered,
    capacity,
    given,
    waiting: tl.constexpr,
) -> None:
    """The number of larger (high half) and of equal candidates in each batch."""
    await_others(waiting, admitting=True)
    q = tl.load(rows + 3 * tl.program_id(1)).to(tl.int32)
    block_state = state + q * STATE
    count = tl.load(block_state + COUNT)
    if (tl.load(block_state + DENSE) == 0) & (tl.program_id(0) * BATCH < count):
        _, entry, inside = _batch(ordered, q, capacity, count)
        larger, equal = _larger_and_equal(entry, inside, tl.load(block_state + KTH))
        total = tl.sum((larger.to(tl.int32) << 16) + equal.to(tl.int32))
        at = given + q * tl.num_programs(0) + tl.program_id(0)
        tl.store(at, (total.to(tl.int64) >> 16 << 32) + (total & 0xFFFF))


@kernel
def write(
    rows,
    state,
    ordered,
    capacity,
    given,
    indices,
    values,
    x,
    table,
    start,
    stride,
    chunk: tl.constexpr,
    one: tl.constexpr,
    removing: tl.constexpr,
    extracted: tl.constexpr,
    bf16: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    """Write a batch's selected elements after those of the batches before it.

    If `removing`, they are subtracted from the vector, rounded to bfloat16 if `bf16`.
    If candidates were `extracted`, they already were, and the others are put back.
    """
    await_others(waiting, admitting=True)
    row = rows + 3 * tl.program_id(1)
    q, out = tl.load(row).to(tl.int32), tl.load(row + 2)
    block_state = state + q * STATE
    count = tl.load(block_state + COUNT)
    p = tl.program_id(0)
    if (tl.load(block_state + DENSE) == 0) & (p * BATCH < count):
        kth, ties = tl.load(block_state + KTH), tl.load(block_state + TIES)
        _, entry, inside = _batch(ordered, q, capacity, count)
        sums = tl.zeros([MANY], tl.int64)
        for first in range(0, p, MANY):
            other = first + tl.arange(0, MANY)
            at = given + q * tl.num_programs(0) + other
            sums += tl.load(at, mask=other < p, other=0)
        before = tl.sum(sums)
        larger, equal = _larger_and_equal(entry, inside, kth)
        packed = (larger.to(tl.int32) << 16) + equal.to(tl.int32)
        rank = tl.cumsum(packed) - packed
        equals = before.to(tl.int32) + (rank & 0xFFFF)
        to = out + (before >> 32) + (rank >> 16) + tl.minimum(equals, ties)
        selected = larger | (equal & (equals < ties))
        value = entry.to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(indices + to, (entry >> 32).to(tl.int32), mask=selected)
        tl.store(values + to, value, mask=selected)
        if removing:
            begin, _ = extent(table, q, start, count, one)
            j = (entry >> 32).to(tl.int32)
            at = x + position(j, begin, stride, chunk)
            if extracted:
                tl.store(at, value, mask=inside & ~selected)
            else:
                tl.store(at, rest(value, bf16), mask=selected)


@kernel
def restore(
    rows,
    state,
    found,
    capacity,
    x,
    table,
    start,
    stride,
    chunk: tl.constexpr,
    one: tl.constexpr,
) -> None:
    """Write extracted candidates back to the vector."""
    q = tl.load(rows + 3 * tl.program_id(1)).to(tl.int32)
    count = tl.minimum(tl.load(state + q * STATE + COUNT), capacity)
    if tl.program_id(0) * BATCH < count:
        _, entry, inside = _batch(found, q, capacity, count)
        begin, _ = extent(table, q, start, count, one)
        at = x + position((entry >> 32).to(tl.int32), begin, stride, chunk)
        value = entry.to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(at, value, mask=inside)
