"""One pass over every element: accumulate, and list candidates for selection.

A candidate is an element whose magnitude is at least its block's threshold. A tile of
1024 elements reserves places in its block's list by one atomic addition, and writes its
candidates there in ascending order. The order of the tiles is arbitrary, so a table
records each tile's place, and no result depends on it.

The threshold comes from a sample of the same step: 32 neighbours out of every few
thousand elements, counted in 256 bins of two octaves around the k-th magnitude of the
last selection. A threshold of the last step would fail if the gradient's scale jumps.
"""

from typing import Any

import triton.language as tl

from thinwire.kernels.cuda.halves import rest
from thinwire.kernels.cuda.launch import (
    arrive,
    await_others,
    kernel,
    magnitude,
    position,
    reach,
)

TILE: Any = tl.constexpr(1024)
# Tiles whose candidates are also counted together.
CROWD: Any = tl.constexpr(1024)
BINS: Any = tl.constexpr(256)
# Of a sample: neighbours, which share a line of memory, in a row; rows of a program.
NEIGHBOURS: Any = tl.constexpr(32)
# Bins of a sample's window, as bits of a magnitude: a window is two octaves wide.
WINDOW_SHIFT: Any = tl.constexpr(16)
CLEARED: Any = tl.constexpr(2048)
NO: Any = tl.constexpr(value=False)
YES: Any = tl.constexpr(value=True)
OCTAVE: Any = tl.constexpr(1 << 23)

# Words of a block's state. Atomic counters are on separate cache lines.
STATE: Any = tl.constexpr(96)
THRESHOLD: Any = tl.constexpr(0)
WINDOW: Any = tl.constexpr(1)  # where the window of the next sample begins
DENSE: Any = tl.constexpr(2)  # 1 if the candidates are not sufficient
COARSE: Any = tl.constexpr(3)
REST: Any = tl.constexpr(4)
KTH: Any = tl.constexpr(5)  # the k-th magnitude
TIES: Any = tl.constexpr(6)  # how many elements of exactly this magnitude to take
COUNT: Any = tl.constexpr(32)  # of candidates, listed or beyond the capacity
TICKETS: Any = tl.constexpr(64)  # of the sample, and of the two counts after it


@kernel
def extent(
    table,
    q,
    start,
    length,
    one: tl.constexpr,
) -> Any:
    """Where a block begins, and its length: the arguments if there is one block."""
    if not one:
        start = tl.load(table + 2 * q)
        length = tl.load(table + 2 * q + 1).to(tl.int32)
    return start, length


@kernel
def sample(
    x,
    grad,
    scale,
    table,
    first,
    start,
    length,
    stride,
    aims,
    state,
    sampled,
    cleared,
    words,
    rows,
    chunk: tl.constexpr,
    one: tl.constexpr,
    reading: tl.constexpr,
    cold: tl.constexpr,
    height: tl.constexpr,
) -> None:
    """Choose the threshold of each block from `rows` times 32 of its elements.

    If `cold`, all octaves are counted, and the window of the next sample is chosen
    instead. The counts of later launches are cleared as well.
    """
    q = tl.program_id(1) + first
    programs = tl.num_programs(0)
    row = tl.program_id(0) * height + tl.arange(0, height)
    start, length = extent(table, q, start, length, one)
    spacing = length // rows
    j = (row * spacing)[:, None] + tl.arange(0, NEIGHBOURS)[None, :]
    inside = (row < rows)[:, None] & (j < length)
    p = position(j, start, stride, chunk)
    value = tl.load(x + p, mask=inside, other=0.0)
    if not reading:
        value = value * scale + tl.load(grad + p, mask=inside, other=0.0).to(tl.float32)
    low = tl.load(state + q * STATE + WINDOW)
    if cold:
        bins = magnitude(value) >> 23
    else:
        above = (magnitude(value) - low) >> WINDOW_SHIFT
        bins = tl.minimum(tl.maximum(above, 0), BINS - 1)
    every = tl.arange(0, BINS)
    counts = tl.histogram(
        tl.reshape(bins, [height * NEIGHBOURS]),
        BINS,
        mask=tl.reshape(inside, [height * NEIGHBOURS]),
    )
    tl.atomic_add(sampled + q * BINS + every, counts, mask=counts > 0, sem="relaxed")
    for begin in range(tl.program_id(0) * CLEARED, words, programs * CLEARED):
        at = begin + tl.arange(0, CLEARED)
        tl.store(cleared + q.to(tl.int64) * words + at, 0, mask=at < words)
    block_state = state + q * STATE
    if arrive(block_state + TICKETS) == programs - 1:
        counts = tl.load(sampled + q * BINS + every, cache_modifier=".cg")
        tl.store(sampled + q * BINS + every, tl.zeros_like(counts))
        b, _ = reach(counts, tl.load(aims + q), BINS)
        b = tl.maximum(b, 0)
        if cold:
            tl.store(block_state + WINDOW, tl.maximum(b * OCTAVE - OCTAVE // 2, 0))
        else:
            # Below the window everything is one bin: its elements are not listed.
            tl.store(block_state + THRESHOLD, tl.maximum(low + (b << WINDOW_SHIFT), 1))
        tl.store(block_state + COUNT, 0)
        tl.store(block_state + DENSE, 0)
        tl.store(block_state + TICKETS + tl.arange(0, 4), tl.zeros([4], tl.int32))


@kernel
def _sum(
    x,
    grad,
    scale,
    before,
    least,
    inside,
    reading: tl.constexpr,
    scaled: tl.constexpr,
    zeroing: tl.constexpr,
    keeping: tl.constexpr,
    extracting: tl.constexpr,
    bf16: tl.constexpr,
) -> Any:
    """The values of a tile of the vector, accumulated unless `reading`; zero outside.

    If `extracting`, values of at least the magnitude `least` leave the vector. If
    `keeping`, the vector's tile as it was is copied to `before`.
    """
    other = None if inside is None else 0.0
    value = tl.load(x, mask=inside, other=other)
    if keeping:
        tl.store(before, value, mask=inside)
    if not reading:
        addend = tl.load(grad, mask=inside, other=other).to(tl.float32)
        value = (value * scale if scaled else value) + addend
        kept = value
        if extracting:
            kept = tl.where(magnitude(value) >= least, rest(value, bf16), value)
        tl.store(x, kept, mask=inside)
        if zeroing:
            tl.store(grad, tl.zeros([TILE], grad.dtype.element_ty), mask=inside)
    return value


@kernel
def accumulate_and_list(
    x,
    grad,
    scale,
    before,
    table,
    first,
    start,
    length,
    stride,
    state,
    listed,
    found,
    capacity,
    tiles,
    crowds,
    words,
    extracted,
    chunk: tl.constexpr,
    one: tl.constexpr,
    aligned: tl.constexpr,
    reading: tl.constexpr,
    scaled: tl.constexpr,
    zeroing: tl.constexpr,
    keeping: tl.constexpr,
    running: tl.constexpr,
    extracting: tl.constexpr,
    bf16: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    """`x = x * scale + grad` for a tile, and its candidates.

    If `reading`, there is no gradient: candidates of `x` as it is. The table `listed`
    has each tile's first place in the list (high half) and number of candidates. If
    `extracting`, candidates of the blocks whose bit is set in `extracted` leave the
    vector (all but the rounding error if `bf16`). A later launch puts back those that
    are not selected: a tenth of the scattered writes of removing the others.
    """
    await_others(waiting, admitting=False)
    t = tl.program_id(0)
    q = t * 0 if one else first + t // tiles
    tile = t if one else t % tiles
    start, length = extent(table, q, start, length, one)
    j = tile * TILE + tl.arange(0, TILE)
    inside = j < length
    if running:
        # A tile is contiguous in every kind of block.
        base = position(tile * TILE, start, stride, chunk)
        if aligned:
            base = tl.multiple_of(base, 16)
        x += base
        grad += base
        before += base
        p = tl.arange(0, TILE)
    else:
        p = position(j, start, stride, chunk)
    threshold = tl.load(state + q * STATE + THRESHOLD)
    to, by, old = x + p, grad + p, before + p
    least = threshold
    if extracting and not one:
        least = tl.where((extracted >> q) & 1 == 1, threshold, 0x7FFFFFFF)
    # With an arbitrary mask, loads would not be four elements wide.
    if (tile + 1) * TILE <= length:
        value = _sum(
            *(to, by, scale, old, least, None),
            *(reading, scaled, zeroing, keeping, extracting, bf16),
        )
    else:
        value = _sum(
            *(to, by, scale, old, least, inside),
            *(reading, scaled, zeroing, keeping, extracting, bf16),
        )
    candidate = (magnitude(value) >= threshold) & inside
    marks = candidate.to(tl.int32)
    total = tl.sum(marks)
    at = listed + q.to(tl.int64) * tiles + tile
    if total > 0:
        place = tl.atomic_add(state + q * STATE + COUNT, total, sem="relaxed")
        tl.atomic_add(crowds + q * words + tile // CROWD, total, sem="relaxed")
        slot = place + tl.cumsum(marks) - 1
        low = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        entry = (j.to(tl.int64) << 32) | low
        listing = found + q.to(tl.int64) * capacity + slot
        tl.store(listing, entry, mask=candidate & (slot < capacity))
        if extracting:  # noqa: SIM102 - one is known when compiling, the other is not
            if place + total > capacity:
                # Candidates beyond the list's capacity stay in the vector.
                tl.store(to, value, mask=candidate)
        tl.store(at, (place.to(tl.int64) << 32) | total)
    else:
        tl.store(at, total.to(tl.int64))


@kernel
def accumulate(
    x,
    grad,
    scale,
    before,
    size,
    scaled: tl.constexpr,
    keeping: tl.constexpr,
) -> None:
    """`x = x * scale + grad; grad = 0` for a tile."""
    base = tl.program_id(0).to(tl.int64) * TILE
    lane = tl.arange(0, TILE)
    to, by, old = x + base + lane, grad + base + lane, before + base + lane
    if base + TILE <= size:
        _sum(to, by, scale, old, 0, None, NO, scaled, YES, keeping, NO, NO)
    else:
        inside = lane < size - base
        _sum(to, by, scale, old, 0, inside, NO, scaled, YES, keeping, NO, NO)
