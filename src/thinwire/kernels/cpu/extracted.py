"""The lists of one block's extracted elements: add to them, take the largest.

`extraction` describes the lists. Kernels receive them as a tuple (where, held, begins,
ends): the lists of block `number` in row t have columns 2 * number and 2 * number + 1.
A block is a tuple (x, start, chunk, stride, length).
"""

from typing import Any

import numpy as np

from thinwire.kernels.cpu.arrays import (
    Bits,
    Counts,
    Entries,
    Floats,
    Indices,
    Lists,
    Place,
)
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.elements import chunk_bits
from thinwire.kernels.cpu.intrinsics import MAGNITUDE, magnitude, prefetch, to_bf16
from thinwire.kernels.cpu.select import (
    COARSE,
    FINE,
    TALLIES,
    clear,
    find,
    refine,
    tally,
)

# Elements that are prefetched while one is processed.
_AHEAD = 48


@kernel
def add_to_extracted(
    place: Place,
    lists: Lists,
    number: int,
    before: Any,
    added: Entries,
    merged: Entries,
    changed: Any,
) -> int:
    """Merge entries into a block's lists; returns the length of the one list `merged`.

    An added element that was not extracted is read from the vector and is extracted
    from now on. `changed` marks the elements whose value differs from the one that was
    extracted; `before` is its last value, or empty if none differed. Returns -1 if an
    index lies outside the block.
    """
    x, start, chunk, stride, length = place
    extracted, held, begins, ends = lists
    indices, values = added
    where, sums = merged
    for e in range(len(indices)):
        if indices[np.uintp(e)] < 0 or indices[np.uintp(e)] >= length:
            return -1
    bits = chunk_bits(chunk, stride)
    jump = stride - chunk
    same = len(before) == 0
    count = 2 * len(begins)
    i = end = here = 0
    n = 0
    more = len(indices)
    for e in range(more + 1):
        j: Any = np.int64(indices[np.uintp(e)]) if e < more else np.int64(length)
        while True:
            while i < end and extracted[np.uintp(i)] < j:
                where[np.uintp(n)] = extracted[np.uintp(i)]
                sums[np.uintp(n)] = held[np.uintp(i)]
                changed[np.uintp(n)] = 0 if same else before[np.uintp(i)]
                i += 1
                n += 1
            if i < end or here == count:
                break
            i = begins[here >> 1, 2 * number + (here & 1)]
            end = ends[here >> 1, 2 * number + (here & 1)]
            here += 1
        if e == more:  # all that was extracted has been copied
            break
        ahead = min(e + _AHEAD, more - 1)
        prefetch(x, _position(indices, ahead, start, chunk, bits, jump))
        if i < end and extracted[np.uintp(i)] == j:
            value = held[np.uintp(i)]
            i += 1
        else:
            value = x[np.uintp(_position(indices, e, start, chunk, bits, jump))]
        where[np.uintp(n)] = j
        sums[np.uintp(n)] = value + values[np.uintp(e)]
        changed[np.uintp(n)] = 1
        n += 1
    return n


@kernel
def tally_extracted(held: Floats, size: int, threshold: int, counts: Counts) -> None:
    """Count the entries that reach the threshold, in a list that was added to."""
    clear(counts[0])
    for i in range(size):
        above = magnitude(held[np.uintp(i)]) - threshold
        if above >= 0:
            tally(counts, 0, above)


@part
def _position(
    indices: Indices, i: int, start: int, chunk: int, bits: int, jump: int
) -> int:
    """The index in the vector of entry `i` of a list."""
    j: Any = np.int64(indices[np.uintp(i)])
    return start + j + (j >> bits if bits >= 0 else j // chunk) * jump  # type: ignore[no-any-return]


@kernel
def kth_extracted(
    lists: Lists,
    number: int,
    counts: Counts,
    aim: tuple[int, int, int],
    scratch: tuple[Counts, Floats],
    shares: Bits,
) -> tuple[int, int, int, int]:
    """The k-th largest magnitude of a block's lists, for an `aim` (k, goal, threshold).

    Returns how many entries reach the threshold; if at least k, also the k-th
    magnitude, about the goal-th (0 if there are fewer), and how many of the entries
    equal to the k-th are selected. `shares`, unless empty, receives for each row how
    many of its entries are selected, and how many of those equal the k-th. `counts`
    are the tallies by row and block; `scratch` is for counts, and for all values.
    """
    _, held, begins, ends = lists
    k, goal, threshold = aim
    bins, members = scratch
    tallies = bins[:TALLIES]
    n: Any = np.int64(0)
    for i in range(TALLIES):
        total: Any = np.int32(0)
        for t in range(len(counts)):
            total += counts[np.uintp(t), np.uintp(number), np.uintp(i)]
        tallies[np.uintp(i)] = total
        n += total
    if n < k:
        return n, 0, 0, 0
    reached = 0
    if n >= goal:
        b, _ = find(tallies, goal)
        reached = threshold + (b << FINE)
    b, left = find(tallies, k)
    low = threshold + (b << FINE)
    high = low + (1 << FINE)
    shift = np.int64(0)
    if b == TALLIES - 1:  # the last bin has no upper limit
        high = np.int64(MAGNITUDE + 1)
        shift = np.int64(COARSE)
    few: Any = 0
    for t in range(len(begins)):
        for s in range(2 * number, 2 * number + 2):
            few = _members(held, begins[t, s], ends[t, s], low, high, members, few)
    clear(bins)
    for i in range(few):
        bins[np.uintp((magnitude(members[np.uintp(i)]) - low) >> shift)] += 1
    kth, ties = refine(members, few, left, low, shift, bins)
    _share(lists, number, kth, ties, shares)
    return n, kth, reached, ties


@part
def _members(
    held: Floats, i: int, end: int, low: int, high: int, members: Floats, n: Any
) -> Any:
    """Collect the few values of magnitudes from `low` to below `high`.

    Most runs of 16 contain none, which is determined without a branch for each.
    """
    base = np.uint32(low)
    width = np.uint32(high - low)
    while i < end:
        stop = min(i + 16, end)
        here = np.uint32(1)
        if stop - i == 16:
            here = np.uint32(0)
            for e in range(i, i + 16):
                m = np.uint32(magnitude(held[np.uintp(e)]))
                here += np.uint32(m - base < width)
        if here > 0:
            for e in range(i, stop):
                m = np.uint32(magnitude(held[np.uintp(e)]))
                members[np.uintp(n)] = held[np.uintp(e)]
                n += np.int64(m - base < width)
        i = stop
    return n


@part
def _share(lists: Lists, number: int, kth: int, ties: int, shares: Bits) -> None:
    """How many entries of each row are selected; of ties, the first ones."""
    _, held, begins, ends = lists
    for t in range(len(shares)):
        above = np.uint32(0)
        equal = np.uint32(0)
        for s in range(2 * number, 2 * number + 2):
            for i in range(begins[t, s], ends[t, s]):
                m = np.uint32(magnitude(held[np.uintp(i)]))
                above += np.uint32(m > np.uint32(kth))
                equal += np.uint32(m == np.uint32(kth))
        given: Any = min(np.int64(equal), ties)
        shares[t, 0] = np.int64(above) + given
        shares[t, 1] = given
        ties -= given


@part
def _sort_out(
    lists: Lists,
    number: int,
    rows: tuple[int, int],
    changed: Any,
    kth: int,
    ties: int,
    chosen: Entries,
    rest: Entries,
    size: int,
) -> tuple[int, int]:
    """Copy entries above `kth` and the first `ties` equal to it to `chosen`.

    All others go to the beginning of `rest`; chosen entries that were changed go also
    to its end, which is `size`, the number of all. Returns where the former end and the
    latter begin. Branches are avoided: each entry is written to all destinations and
    overwritten. Where the two parts of `rest` meet, both write the same.
    """
    where, held, begins, ends = lists
    indices, values = chosen
    others, left = rest
    taken: Any = 0
    back: Any = 0
    tail: Any = size - 1
    some = len(changed) > 0
    for column in range(2 * rows[0], 2 * rows[1]):
        i = begins[column >> 1, 2 * number + (column & 1)]
        end = ends[column >> 1, 2 * number + (column & 1)]
        while i < end and taken < len(indices):
            j = where[np.uintp(i)]
            value = held[np.uintp(i)]
            m = magnitude(value)
            tie: Any = np.int64(m == kth)
            kept: Any = np.int64(m > kth) | tie & np.int64(ties > 0)
            ties -= tie
            indices[np.uintp(taken)] = j
            values[np.uintp(taken)] = value
            others[np.uintp(back)] = j
            left[np.uintp(back)] = value
            taken += kept
            back += 1 - kept
            if some:
                others[np.uintp(tail)] = j
                left[np.uintp(tail)] = value
                tail -= kept & changed[np.uintp(i)]
            i += 1
        while i < end:
            others[np.uintp(back)] = where[np.uintp(i)]
            left[np.uintp(back)] = held[np.uintp(i)]
            back += 1
            i += 1
    return back, tail + 1


@part
def _write(place: Place, entries: Entries, low: int, high: int) -> None:
    """Write entries `low` to `high` of a list to a block."""
    x, start, chunk, stride, _ = place
    indices, values = entries
    bits = chunk_bits(chunk, stride)
    jump = stride - chunk
    for i in range(low, high):
        ahead = min(i + _AHEAD, high - 1)
        prefetch(x, _position(indices, ahead, start, chunk, bits, jump))
        at = _position(indices, i, start, chunk, bits, jump)
        x[np.uintp(at)] = values[np.uintp(i)]


@kernel
def take_extracted(
    place: Place,
    lists: Lists,
    number: int,
    rows: tuple[int, int],
    changed: Any,
    kth: int,
    ties: int,
    bf16: bool,  # noqa: FBT001
    chosen: Entries,
    scratch: Entries,
) -> None:
    """Copy the selected entries of some rows to `chosen`; put the others back.

    `rows` is (first, end). `kth` and `ties` are `kth_extracted`'s. The vector already
    holds the rounding error of a selected element, unless the element was `changed`
    (empty: none was). `scratch` has space for the entries of all lists.
    """
    _, _, begins, ends = lists
    size = 0
    for t in range(rows[0], rows[1]):
        for s in range(2 * number, 2 * number + 2):
            size += ends[t, s] - begins[t, s]
    given = (lists, number, rows, changed, kth, ties)
    end, begin = _sort_out(*given, chosen, scratch, size)
    rest = scratch[1]
    for i in range(begin, size):
        value = rest[np.uintp(i)]
        rest[np.uintp(i)] = value - (to_bf16(value) if bf16 else value)
    for low, high in ((0, end), (begin, size)):
        _write(place, scratch, low, high)
