"""The k largest of a few candidates, exactly, by counting instead of sorting.

Candidates are the marked elements. Their magnitude bits are counted in bins. The bin
that contains the k-th largest is counted again with finer bins until a bin is a single
value. Then the candidates are compacted in ascending order of index: of equal
magnitudes, the first ones have the smaller index. About 15 ns per candidate, most of
it waiting for the element to arrive from memory.
"""

import threading
from typing import Any

import numpy as np

from thinwire.kernels.cpu.arrays import Bits, Counts, Entries, Floats, Indices, Place
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import (
    MAGNITUDE,
    count_ones,
    magnitude,
    prefetch,
    trailing_zeros,
)

BINS = 1 << 13
# The first count above a known threshold: bins 0.1 % wide, eight octaves of them.
FINE = 13
# Counts of extracted elements: few bins stay in the cache. They are as wide, and one
# octave is usually enough for thresholds this close.
TALLIES = 1 << 10
# The first count of a list without a threshold: every magnitude has a bin.
COARSE = 18
# Elements that are prefetched while one is processed.
SPARE = 48


_kept = threading.local()


def scratch_counts() -> Counts:
    """This thread's memory for counts, kept from call to call."""
    counts: Counts | None = getattr(_kept, "counts", None)
    if counts is None:
        counts = _kept.counts = np.empty(BINS, np.int32)
    return counts


@part
def find(counts: Counts, k: int) -> tuple[int, int]:
    """The bin where a count from the top reaches `k`, and the number needed of it."""
    b = len(counts) - 1
    while b >= 64:
        total: Any = np.int32(0)
        for i in range(b - 63, b + 1):
            total += counts[np.uintp(i)]
        if total >= k:
            break
        k -= total
        b -= 64
    while b > 0 and counts[b] < k:
        k -= counts[b]
        b -= 1
    return b, k


@part
def tally(counts: Counts, number: int, above: int) -> None:
    """Count an element of a block by how far its magnitude is above the threshold."""
    counts[np.uintp(number), np.uintp(min(above >> FINE, TALLIES - 1))] += 1


@part
def clear(counts: Counts) -> None:
    """Set all counts to zero."""
    for b in range(len(counts)):
        counts[b] = 0


@part
def refine(
    values: Floats, count: int, k: int, low: int, shift: int, counts: Counts
) -> tuple[int, int]:
    """The k-th largest magnitude, and how many of exactly this magnitude to take.

    `counts` counts `(magnitude - low) >> shift`, the last bin without upper limit; no
    magnitude is below `low`.
    """
    high = MAGNITUDE + 1
    while True:
        b, k = find(counts, k)
        unlimited = b == BINS - 1 and high - low > BINS << shift
        low += b << shift
        if shift == 0:
            return low, k
        if unlimited:
            shift = COARSE
        else:
            high = low + (1 << shift)
            shift = max(shift - 13, 0)
        clear(counts)
        _count_between(values, count, low, high, shift, counts)


@part
def _count_between(
    values: Floats, count: int, low: int, high: int, shift: int, counts: Counts
) -> None:
    """Count the few magnitudes from `low` to below `high`.

    Most runs of 16 contain none, which is determined without a branch for each.
    """
    base = np.uint32(low)
    width = np.uint32(high - low)
    whole = count & ~15
    for i in range(0, whole, 16):
        here = np.uint32(0)
        for t in range(i, i + 16):
            here += np.uint32(np.uint32(magnitude(values[np.uintp(t)])) - base < width)
        if here > 0:
            _count_some(values, i, i + 16, low, high, shift, counts)
    _count_some(values, whole, count, low, high, shift, counts)


@part
def _count_some(
    values: Floats,
    start: int,
    end: int,
    low: int,
    high: int,
    shift: int,
    counts: Counts,
) -> None:
    for i in range(start, end):
        m = magnitude(values[np.uintp(i)])
        if low <= m < high:
            counts[np.uintp(min((m - low) >> shift, BINS - 1))] += 1


@kernel
def kth_magnitude(values: Floats, k: int, counts: Counts) -> tuple[int, int]:
    """The k-th largest magnitude of a list, and how many of it are among the k."""
    clear(counts)
    for i in range(len(values)):
        counts[np.uintp(magnitude(values[i]) >> COARSE)] += 1
    return refine(  # type: ignore[no-any-return]
        values, len(values), k, np.int64(0), np.int64(COARSE), counts
    )


@part
def _count(words: Bits) -> int:
    """How many elements are marked."""
    total = 0
    for w in range(len(words)):
        total += count_ones(words[w])
    return total


@part
def _list(words: Bits, marked: int, where: Indices) -> None:
    """The indices of the marked elements, followed by up to 4 arbitrary ones.

    A branch on the number of marks in a word would often be mispredicted. So four
    indices are always written, and those of the next word overwrite the surplus.
    """
    few = marked < len(words) >> 1
    n = 0
    for w in range(len(words)):
        word = words[w]
        if few and word == 0:
            continue
        here: Any = count_ones(word)
        first = w << 6
        for i in range(4):
            where[np.uintp(n + i)] = first + trailing_zeros(word)
            word &= word - 1
        i = 4
        while word != 0:
            where[np.uintp(n + i)] = first + trailing_zeros(word)
            word &= word - 1
            i += 1
        n += here


@part
def _gather(
    place: Place,
    threshold: int,
    marked: int,
    where: Indices,
    found: Floats,
    counts: Counts,
) -> int:
    """The block's elements at `where`, counted; those below the threshold are left out.

    Elements are prefetched `SPARE` entries before they are read.
    """
    x, start, chunk, stride, _ = place
    jump = stride - chunk
    bits = trailing_zeros(chunk) if chunk & (chunk - 1) == 0 else -1
    n = 0
    for i in range(marked):
        ahead: Any = np.int64(where[i + SPARE])
        j: Any = np.int64(where[i])
        if bits >= 0:
            ahead += (ahead >> bits) * jump
            at = j + (j >> bits) * jump
        else:
            ahead += ahead // chunk * jump
            at = j + j // chunk * jump
        prefetch(x, start + ahead)
        value = x[np.uintp(start + at)]
        above = magnitude(value) - threshold
        where[np.uintp(n)] = j
        found[np.uintp(n)] = value
        if above >= 0:
            n += 1
            counts[np.uintp(min(above >> FINE, BINS - 1))] += 1
    return n


@part
def _compact(
    where: Indices, found: Floats, kth: int, ties: int, indices: Indices, values: Floats
) -> None:
    """Those above `kth`, and the first `ties` that are equal to it."""
    taken: Any = 0
    i = 0
    while taken < len(indices):
        m = magnitude(found[np.uintp(i)])
        indices[np.uintp(taken)] = where[np.uintp(i)]
        values[np.uintp(taken)] = found[np.uintp(i)]
        tie: Any = np.int64(m == kth)
        taken += np.int64(m > kth) | tie & np.int64(ties > 0)
        ties -= tie
        i += 1


@kernel
def choose(
    place: Place,
    words: Bits,
    threshold: int,
    goal: int,
    counts: Counts,
    scratch: Entries,
    chosen: Entries,
) -> tuple[int, int, int, int]:
    """Write the largest of a block's marked elements, if enough reach `threshold`.

    Returns how many are marked; how many reach the threshold (if too few, nothing was
    written); the k-th magnitude; about the `goal`-th magnitude (0 if there are fewer).
    `scratch` has space for all that are marked and `SPARE` more; with less space
    nothing is done. `counts` is scratch memory, too.
    """
    where, found = scratch
    indices, values = chosen
    marked = _count(words)
    if marked + SPARE > len(where):
        return marked, 0, 0, 0
    k = len(indices)
    _list(words, marked, where)
    last = where[marked - 1] if marked else 0
    for i in range(marked, marked + SPARE):
        where[i] = last
    clear(counts)
    n = _gather(place, threshold, marked, where, found, counts)
    if n < k:
        return marked, n, 0, 0
    reached = 0
    if n >= goal:
        b, _ = find(counts, goal)
        reached = threshold + (b << FINE)
    kth, ties = refine(found, n, k, threshold, np.int64(FINE), counts)
    _compact(where, found, kth, ties, indices, values)
    return marked, n, kth, reached


@kernel
def choose_with_zeros(place: Place, words: Bits, zeros: int, chosen: Entries) -> None:
    """Write a block's non-zero elements, all marked, and its first `zeros` zeros."""
    x, start, chunk, stride, length = place
    indices, values = chosen
    taken = 0
    for w in range(len(words)):
        word = words[w] if zeros == 0 else np.int64(-1)
        while word != 0:
            j = (w << 6) + trailing_zeros(word)
            word &= word - 1
            if j >= length or taken == len(indices):
                return
            value = x[start + j // chunk * stride + j % chunk]
            zero: Any = np.int64(magnitude(value) == 0)
            if zero <= zeros:
                zeros -= zero
                indices[taken] = j
                values[taken] = value
                taken += 1


@kernel
def sample(place: Place, found: Floats) -> None:
    """Elements of a block, 16 neighbours (a cache line) at a time, spread evenly."""
    x, start, chunk, stride, length = place
    groups = len(found) // 16
    step = length // groups
    for group in range(groups):
        # Scattered within its step, against periodic data.
        j = group * step + group * 0x9E3779B1 % (step - 15)
        for i in range(16):
            found[group * 16 + i] = x[start + j // chunk * stride + j % chunk]
            j += 1


@kernel
def partition(
    counts: Counts, k: int, entries: Entries, most: Entries, rest: Entries
) -> None:
    """The `k` largest entries of a list, and the others. `counts` is scratch memory."""
    indices, values = entries
    kept, kept_values = most
    dropped, dropped_values = rest
    kth, ties = kth_magnitude(values, k, counts)
    taken = 0
    left = 0
    for i in range(len(values)):
        m = magnitude(values[i])
        tie = m == kth and ties > 0
        if m > kth or tie:
            ties -= tie
            kept[taken] = indices[i]
            kept_values[taken] = values[i]
            taken += 1
        else:
            dropped[left] = indices[i]
            dropped_values[left] = values[i]
            left += 1
