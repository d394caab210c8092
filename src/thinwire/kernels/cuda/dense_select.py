"""The k largest of all elements, exactly, in one launch with barriers.

Counts by 8, 8, 8 and 7 bits of the magnitude find the k-th largest. A fifth reading
counts the selected elements of each program, and a sixth writes them in order. This is
for blocks too short for a list of candidates, for lists to split, and for blocks whose
candidates were not sufficient, as a flag in the state shows.
"""

from typing import Any

import triton.language as tl

from thinwire.kernels.cuda.halves import rest
from thinwire.kernels.cuda.launch import kernel, magnitude, meet, position, reach
from thinwire.kernels.cuda.mark import BINS, COUNT, DENSE, OCTAVE, STATE, WINDOW, extent

SPAN: Any = tl.constexpr(2048)
# Words that the programs of a launch share: counts, and two barrier counters. They
# are zero before a launch, and after it.
SHARED: Any = tl.constexpr(4 * 256 + 2)


@kernel
def _span(
    x,
    i,
    start,
    length,
    stride,
    chunk: tl.constexpr,
) -> Any:
    """Some elements of the block: their numbers, their values, and which there are."""
    j = i * SPAN + tl.arange(0, SPAN)
    inside = j < length
    value = tl.load(x + position(j, start, stride, chunk), mask=inside, other=0.0)
    return j, value, inside


@kernel
def _digit(
    x,
    low,
    high,
    place,
    chunk: tl.constexpr,
    shared,
    met,
    kth,
    need,
    level: tl.constexpr,
) -> Any:
    """The next bits of the k-th magnitude, and how many of those with them to take."""
    start, length, stride = place
    shift: tl.constexpr = 23 - 8 * level if level < 3 else 0
    width: tl.constexpr = 8 if level < 3 else 7
    every = tl.arange(0, BINS)
    total = tl.zeros([BINS], tl.int32)
    for i in range(low, high):
        _, value, inside = _span(x, i, start, length, stride, chunk)
        key = magnitude(value)
        inside = inside & (key >> (shift + width) == kth)
        bins = (key >> shift) & ((1 << width) - 1)
        total += tl.histogram(bins, BINS, mask=inside)
    counts = shared + level * BINS + every
    tl.atomic_add(counts, total, mask=total > 0, sem="relaxed")
    meet(shared + 4 * BINS, met + (level + 1) * tl.num_programs(0))
    b, rest = reach(tl.load(counts, cache_modifier=".cg"), need, BINS)
    return (kth << width) + b, rest


@kernel
def partition(
    x,
    labels,
    rows,
    count,
    table,
    start,
    length,
    stride,
    state,
    shared,
    parts,
    found,
    capacity,
    indices,
    values,
    others,
    other_values,
    chunk: tl.constexpr,
    one: tl.constexpr,
    asked: tl.constexpr,
    splitting: tl.constexpr,
    holes: tl.constexpr,
    removing: tl.constexpr,
    extracted: tl.constexpr,
    bf16: tl.constexpr,
) -> None:
    """Select from each of `count` blocks; if `asked`, only where the state has DENSE.

    Selected elements are written with their index or, if `splitting`, their label; the
    others are then written too. With `holes`, an element of a negative label does not
    exist: its value is zero and it is not selected. If `removing`, selected elements
    are subtracted, rounded to bfloat16 if `bf16`. Candidates that were `extracted` are
    put back first.
    """
    programs = tl.num_programs(0)
    me = tl.program_id(0)
    counter = shared + 4 * BINS
    every = tl.arange(0, BINS)
    met = programs * 0
    for r in range(count):
        q = tl.load(rows + 3 * r).to(tl.int32)
        k = tl.load(rows + 3 * r + 1).to(tl.int32)
        out = tl.load(rows + 3 * r + 2)
        wanted = k > 0
        if asked:
            wanted = tl.load(state + q * STATE + DENSE) == 1
        if wanted:
            begin, size = extent(table, q, start, length, one)
            spans = tl.cdiv(size, SPAN)
            each = tl.cdiv(spans, programs)
            low, high = me * each, tl.minimum((me + 1) * each, spans)
            place = (begin, size, stride)
            if extracted:
                listed = tl.minimum(tl.load(state + q * STATE + COUNT), capacity)
                for i in range(me, tl.cdiv(listed, SPAN), programs):
                    slot = i * SPAN + tl.arange(0, SPAN)
                    there = slot < listed
                    entry = tl.load(
                        found + q.to(tl.int64) * capacity + slot, mask=there, other=0
                    )
                    j = (entry >> 32).to(tl.int32)
                    back = entry.to(tl.int32).to(tl.float32, bitcast=True)
                    at = x + position(j, begin, stride, chunk)
                    tl.store(at, back, mask=there)
                met += programs
                meet(counter, met)
            kth, need = programs * 0, k
            kth, need = _digit(x, low, high, place, chunk, shared, met, kth, need, 0)
            kth, need = _digit(x, low, high, place, chunk, shared, met, kth, need, 1)
            kth, need = _digit(x, low, high, place, chunk, shared, met, kth, need, 2)
            kth, need = _digit(x, low, high, place, chunk, shared, met, kth, need, 3)
            met += 4 * programs
            larger = programs * 0
            equal = programs * 0
            for i in range(low, high):
                j, value, inside = _span(x, i, begin, size, stride, chunk)
                key = magnitude(value)
                same = inside & (key == kth)
                if holes:
                    same = same & (tl.load(labels + j, mask=same, other=-1) >= 0)
                larger += tl.sum((inside & (key > kth)).to(tl.int32))
                equal += tl.sum(same.to(tl.int32))
            tl.store(parts + 2 * me, larger)
            tl.store(parts + 2 * me + 1, equal)
            met += programs
            meet(counter, met)
            # All programs have read the counts of the levels.
            if me == 0:
                for level in tl.static_range(4):
                    zeros = tl.zeros([BINS], tl.int32)
                    tl.store(shared + level * BINS + every, zeros)
            larger = programs * 0
            equal = programs * 0
            for first in range(0, me, BINS):
                other = first + every
                at = parts + 2 * other
                before = other < me
                larger += tl.sum(
                    tl.load(at, mask=before, other=0, cache_modifier=".cg")
                )
                equal += tl.sum(
                    tl.load(at + 1, mask=before, other=0, cache_modifier=".cg")
                )
            for i in range(low, high):
                j, value, inside = _span(x, i, begin, size, stride, chunk)
                key = magnitude(value)
                label = j
                if splitting:
                    label = tl.load(labels + j, mask=inside, other=0)
                over = (inside & (key > kth)).to(tl.int32)
                same = inside & (key == kth)
                if holes:
                    same = same & (label >= 0)
                same = same.to(tl.int32)
                overs = larger + tl.cumsum(over) - over
                sames = equal + tl.cumsum(same) - same
                selected = (over > 0) | ((same > 0) & (sames < need))
                kept = overs + tl.minimum(sames, need)
                tl.store(indices + out + kept, label, mask=selected)
                tl.store(values + out + kept, value, mask=selected)
                if removing:
                    at = x + position(j, begin, stride, chunk)
                    tl.store(at, rest(value, bf16), mask=selected)
                if splitting:
                    left = j - kept
                    tl.store(others + left, label, mask=inside & ~selected)
                    tl.store(other_values + left, value, mask=inside & ~selected)
                larger += tl.sum(over)
                equal += tl.sum(same)
            if asked & (me == 0):
                tl.store(state + q * STATE + WINDOW, tl.maximum(kth - OCTAVE, 0))
            # The counts of the next block must not meet those of this one.
            met += programs
            meet(counter, met)
    if met > 0:
        tl.debug_barrier()
        if tl.atomic_add(counter + 1, 1, sem="acq_rel") == programs - 1:
            tl.store(counter, 0)
            tl.store(counter + 1, 0)
