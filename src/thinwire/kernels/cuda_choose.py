# mypy: disallow-untyped-decorators=False
"""The k largest of listed candidates, exactly, in four launches that never sort.

Candidates are counted in 256 bins from the threshold on, each 0.2 % wide; those of the
bin that holds the k-th largest are counted again, one count per magnitude. Then tiles
count what they give, and write it behind what the tiles before them give: ascending,
because tiles are, and so the first ones of equal magnitude have the smaller index.

Where the candidates do not tell the answer (fewer than k, more than there was room for,
or the k-th far above the threshold) the block is left to `cuda_dense`. No launch waits
for the host: each reads what the one before it has written.
"""

from typing import Any

import triton.language as tl

from thinwire.kernels.cuda_launch import arrive, kernel, reach
from thinwire.kernels.cuda_mark import (
    BINS,
    COARSE,
    COUNT,
    DENSE,
    KTH,
    OCTAVE,
    REST,
    STATE,
    THRESHOLD,
    TICKETS,
    TIES,
    WINDOW,
)

# Bits of a magnitude that a coarse bin does not tell; half of them are counted first.
FINE_BITS: Any = tl.constexpr(14)
FINE_MASK: Any = tl.constexpr((1 << 14) - 1)
HALF_BITS: Any = tl.constexpr(7)
HALF: Any = tl.constexpr(128)
# Counts of a block: coarse bins, halves, and every magnitude of one coarse bin.
HALVES: Any = tl.constexpr(256)
EVERY: Any = tl.constexpr(256 + 128)
COUNTS: Any = tl.constexpr(256 + 128 + (1 << 14))

# Candidates of a program that counts.
BATCH: Any = tl.constexpr(2048)
# Tiles of a program that writes, and candidates of each that it looks at in one go.
GROUP: Any = tl.constexpr(32)
ACROSS: Any = tl.constexpr(32)
# Groups whose counts are also added up.
FAMILY: Any = tl.constexpr(64)


@kernel
def _batch(found: tl.tensor, q: tl.tensor, room: tl.tensor, count: tl.tensor) -> Any:
    i = tl.program_id(0) * BATCH + tl.arange(0, BATCH)
    inside = i < count
    entry = tl.load(found + q.to(tl.int64) * room + i, mask=inside, other=0)
    return entry.to(tl.int32) & 0x7FFFFFFF, inside


@kernel
def count_coarse(
    rows: tl.tensor,
    state: tl.tensor,
    found: tl.tensor,
    room: tl.tensor,
    cleared: tl.tensor,
    words: tl.tensor,
) -> None:
    """Find the bin that holds the k-th largest, or say that there is none."""
    row = rows + 3 * tl.program_id(1)
    q, k = tl.load(row).to(tl.int32), tl.load(row + 1).to(tl.int32)
    own = state + q * STATE
    count, low = tl.load(own + COUNT), tl.load(own + THRESHOLD)
    counts = cleared + q.to(tl.int64) * words
    every = tl.arange(0, BINS)
    enough = (count >= k) & (count <= room)
    if enough & (tl.program_id(0) * BATCH < count):
        key, inside = _batch(found, q, room, count)
        bins = tl.minimum(key - low >> FINE_BITS, BINS - 1)
        some = tl.histogram(bins, BINS, mask=inside)
        tl.atomic_add(counts + every, some, mask=some > 0, sem="relaxed")
    if arrive(own + TICKETS + 1) == tl.num_programs(0) - 1:
        some = tl.load(counts + every, cache_modifier=".cg")
        b, rest = reach(some, k, BINS)
        tl.store(own + COARSE, b)
        tl.store(own + REST, rest)
        # The last bin has no upper end.
        tl.store(own + DENSE, 1 - (enough & (b < BINS - 1)).to(tl.int32))


@kernel
def count_fine(
    rows: tl.tensor,
    state: tl.tensor,
    found: tl.tensor,
    room: tl.tensor,
    cleared: tl.tensor,
    words: tl.tensor,
) -> None:
    """Find the k-th largest, and how many of exactly its magnitude to take."""
    q = tl.load(rows + 3 * tl.program_id(1)).to(tl.int32)
    own = state + q * STATE
    if tl.load(own + DENSE) == 0:
        count, low = tl.load(own + COUNT), tl.load(own + THRESHOLD)
        b = tl.load(own + COARSE)
        counts = cleared + q.to(tl.int64) * words
        if tl.program_id(0) * BATCH < count:
            key, inside = _batch(found, q, room, count)
            above = key - low
            inside = inside & (above >> FINE_BITS == b)
            above = above & FINE_MASK
            half = counts + HALVES + (above >> HALF_BITS)
            tl.atomic_add(half, 1, mask=inside, sem="relaxed")
            tl.atomic_add(counts + EVERY + above, 1, mask=inside, sem="relaxed")
        if arrive(own + TICKETS + 2) == tl.num_programs(0) - 1:
            lane = tl.arange(0, HALF)
            halves = tl.load(counts + HALVES + lane, cache_modifier=".cg")
            h, rest = reach(halves, tl.load(own + REST), HALF)
            each = counts + EVERY + (h << HALF_BITS) + lane
            f, ties = reach(tl.load(each, cache_modifier=".cg"), rest, HALF)
            kth = low + (b << FINE_BITS) + (h << HALF_BITS) + f
            tl.store(own + KTH, kth)
            tl.store(own + TIES, ties)
            tl.store(own + WINDOW, tl.maximum(kth - OCTAVE, 0))


@kernel
def _segments(
    listed: tl.tensor, found: tl.tensor, q: tl.tensor, room: tl.tensor, tiles: tl.tensor
) -> Any:
    """Where the candidates of a group's tiles begin, and how many there are."""
    t = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    entry = tl.load(listed + q.to(tl.int64) * tiles + t, mask=t < tiles, other=0)
    return found + q.to(tl.int64) * room + (entry >> 32), entry.to(tl.int32)


@kernel
def _look(at: tl.tensor, first: tl.tensor, size: tl.tensor, kth: tl.tensor) -> Any:
    """Some candidates of each tile: which are larger than the k-th, which equal."""
    lane = first + tl.arange(0, ACROSS)
    inside = lane[None, :] < size[:, None]
    entry = tl.load(at[:, None] + lane[None, :], mask=inside, other=0)
    key = entry.to(tl.int32) & 0x7FFFFFFF
    return entry, inside & (key > kth), inside & (key == kth)


@kernel
def count_tiles(
    rows: tl.tensor,
    state: tl.tensor,
    listed: tl.tensor,
    found: tl.tensor,
    room: tl.tensor,
    tiles: tl.tensor,
    given: tl.tensor,
    groups: tl.tensor,
    cleared: tl.tensor,
    words: tl.tensor,
) -> None:
    """How many larger ones (high half) and equal ones each tile and group has."""
    q = tl.load(rows + 3 * tl.program_id(1)).to(tl.int32)
    own = state + q * STATE
    if tl.load(own + DENSE) == 0:
        g = tl.program_id(0)
        kth = tl.load(own + KTH)
        at, size = _segments(listed, found, q, room, tiles)
        most = tl.max(size)
        counts = tl.zeros([GROUP], tl.int32)
        for first in range(0, most, ACROSS):
            _, larger, equal = _look(at, first, size, kth)
            packed = (larger.to(tl.int32) << 16) + equal.to(tl.int32)
            counts += tl.sum(packed, axis=1)
        t = g * GROUP + tl.arange(0, GROUP)
        tl.store(given + q.to(tl.int64) * tiles + t, counts, mask=t < tiles)
        larger = tl.sum(counts >> 16).to(tl.int64)
        total = (larger << 32) + tl.sum(counts & 0xFFFF)
        each = tl.num_programs(0)
        tl.store(groups + q.to(tl.int64) * each + g, total)
        families = (cleared + q.to(tl.int64) * words + COUNTS).to(
            tl.pointer_type(tl.int64), bitcast=True
        )
        tl.atomic_add(families + g // FAMILY, total, mask=total > 0, sem="relaxed")


@kernel
def write(
    rows: tl.tensor,
    state: tl.tensor,
    listed: tl.tensor,
    found: tl.tensor,
    room: tl.tensor,
    tiles: tl.tensor,
    given: tl.tensor,
    groups: tl.tensor,
    cleared: tl.tensor,
    words: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    most_families: tl.constexpr,
) -> None:
    """Write what a group of tiles gives, behind what the groups before it give."""
    row = rows + 3 * tl.program_id(1)
    q, out = tl.load(row).to(tl.int32), tl.load(row + 2)
    own = state + q * STATE
    if tl.load(own + DENSE) == 0:
        g = tl.program_id(0)
        kth, ties = tl.load(own + KTH), tl.load(own + TIES)
        at, size = _segments(listed, found, q, room, tiles)
        family = g // FAMILY
        families = (cleared + q.to(tl.int64) * words + COUNTS).to(
            tl.pointer_type(tl.int64), bitcast=True
        )
        lane = tl.arange(0, most_families)
        before = tl.sum(tl.load(families + lane, mask=lane < family, other=0))
        sibling = family * FAMILY + tl.arange(0, FAMILY)
        each = groups + q.to(tl.int64) * tl.num_programs(0) + sibling
        before += tl.sum(tl.load(each, mask=sibling < g, other=0))
        t = g * GROUP + tl.arange(0, GROUP)
        mine = given + q.to(tl.int64) * tiles + t
        counts = tl.load(mine, mask=t < tiles, other=0)
        larger_before = (before >> 32).to(tl.int32)
        larger_before += tl.cumsum(counts >> 16) - (counts >> 16)
        equal_before = before.to(tl.int32)
        equal_before += tl.cumsum(counts & 0xFFFF) - (counts & 0xFFFF)
        most = tl.max(tl.where(counts > 0, size, 0))
        for first in range(0, most, ACROSS):
            entry, larger, equal = _look(at, first, size, kth)
            packed = (larger.to(tl.int32) << 16) + equal.to(tl.int32)
            rank = tl.cumsum(packed, axis=1) - packed
            equals = equal_before[:, None] + (rank & 0xFFFF)
            taken = tl.minimum(equals, ties)
            to = out + larger_before[:, None] + (rank >> 16) + taken
            selected = larger | (equal & (equals < ties))
            value = entry.to(tl.int32).to(tl.float32, bitcast=True)
            tl.store(indices + to, (entry >> 32).to(tl.int32), mask=selected)
            tl.store(values + to, value, mask=selected)
            found_here = tl.sum(packed, axis=1)
            larger_before += found_here >> 16
            equal_before += found_here & 0xFFFF
