"""Lists of what a block has lent: add to them, and choose the largest of them.

`loans` says what it is to lend. A block's lists follow one another: of part t of
the vector, those in the columns 2b and 2b + 1, which begin and end in `where` and
`held` where `begins` and `ends` say.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.elements import chunk_bits
from thinwire.kernels.cpu.intrinsics import (
    MAGNITUDE,
    magnitude,
    prefetch,
    to_brain,
)
from thinwire.kernels.cpu.select import (
    COARSE,
    FINE,
    TALLIES,
    clear,
    find,
    refine,
    tally,
)

Floats = NDArray[np.float32]
Bits = NDArray[np.int64]
Indices = NDArray[Any]
Counts = NDArray[np.int32]

# Elements that are on their way from memory while one is looked at.
_AHEAD = 48


@kernel
def add_to_lent(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    lent: Indices,
    held: Floats,
    begins: Bits,
    ends: Bits,
    number: int,
    before: Any,
    indices: Indices,
    values: Floats,
    where: Indices,
    sums: Floats,
    changed: Any,
) -> int:
    """What a block has lent and what is added to it, as one list; answers its length.

    Elements that were not lent are read, and are lent from now on. `changed` tells
    which differ from what the list began with; `before` told (or is empty: none did).
    Answers -1 where an index lies outside.
    """
    for e in range(len(indices)):
        if indices[np.uintp(e)] < 0 or indices[np.uintp(e)] >= length:
            return -1
    bits = chunk_bits(chunk, stride)
    jump = stride - chunk
    same = len(before) == 0
    lists = 2 * len(begins)
    i = end = here = 0
    n = 0
    more = len(indices)
    for e in range(more + 1):
        j: Any = np.int64(indices[np.uintp(e)]) if e < more else np.int64(length)
        while True:
            while i < end and lent[np.uintp(i)] < j:
                where[np.uintp(n)] = lent[np.uintp(i)]
                sums[np.uintp(n)] = held[np.uintp(i)]
                changed[np.uintp(n)] = 0 if same else before[np.uintp(i)]
                i += 1
                n += 1
            if i < end or here == lists:
                break
            i = begins[here >> 1, 2 * number + (here & 1)]
            end = ends[here >> 1, 2 * number + (here & 1)]
            here += 1
        if e == more:  # all that was lent is behind it
            break
        # The memory needs its time: elements are asked for before they are read.
        ahead = min(e + _AHEAD, more - 1)
        prefetch(x, _place(indices, ahead, start, chunk, bits, jump))
        if i < end and lent[np.uintp(i)] == j:
            value = held[np.uintp(i)]
            i += 1
        else:
            value = x[np.uintp(_place(indices, e, start, chunk, bits, jump))]
        where[np.uintp(n)] = j
        sums[np.uintp(n)] = value + values[np.uintp(e)]
        changed[np.uintp(n)] = 1
        n += 1
    return n


@kernel
def tally_lent(held: Floats, size: int, threshold: int, counts: Counts) -> None:
    """Count what reaches the threshold of a list that was added to."""
    clear(counts[0])
    for i in range(size):
        above = magnitude(held[np.uintp(i)]) - threshold
        if above >= 0:
            tally(counts, 0, above)


@part
def _place(
    indices: Indices, i: int, start: int, chunk: int, bits: int, jump: int
) -> int:
    """Where in the vector an element of a list lies."""
    j: Any = np.int64(indices[np.uintp(i)])
    return start + j + (j >> bits if bits >= 0 else j // chunk) * jump  # type: ignore[no-any-return]


@kernel
def kth_lent(
    held: Floats,
    begins: Bits,
    ends: Bits,
    number: int,
    counts: Counts,
    k: int,
    goal: int,
    threshold: int,
    room: Counts,
    members: Floats,
    shares: Bits,
) -> tuple[int, int, int, int]:
    """The k-th largest magnitude of what a block has lent, and who must give how many.

    Answers how many reach the threshold; if that is enough, the k-th magnitude, about
    the `goal`-th (0 if there are not so many), and how many of those that equal the
    k-th are chosen. `shares`, unless it is empty, then gets for each part how many are
    chosen, and how many of these equal the k-th. `room` is room to count in, `members`,
    as long as all lists together, for values.
    """
    tallies = room[:TALLIES]
    n: Any = np.int64(0)
    for i in range(TALLIES):
        total: Any = np.int32(0)
        for t in range(len(begins)):
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
    if b == TALLIES - 1:  # the open one
        high = np.int64(MAGNITUDE + 1)
        shift = np.int64(COARSE)
    few: Any = 0
    for t in range(len(begins)):
        for s in range(2 * number, 2 * number + 2):
            few = _members(held, begins[t, s], ends[t, s], low, high, members, few)
    clear(room)
    for i in range(few):
        room[np.uintp((magnitude(members[np.uintp(i)]) - low) >> shift)] += 1
    kth, ties = refine(members, few, left, low, shift, room)
    _share(held, begins, ends, number, kth, ties, shares)
    return n, kth, reached, ties


@part
def _members(
    held: Floats, i: int, end: int, low: int, high: int, members: Floats, n: Any
) -> Any:
    """List the few values of magnitudes from `low` to below `high`.

    Most runs of 16 have none of them, which is found out without a branch for each.
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
def _share(
    held: Floats,
    begins: Bits,
    ends: Bits,
    number: int,
    kth: int,
    ties: int,
    shares: Bits,
) -> None:
    """How many each part gives, and how many of them are ties: the first ones."""
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
    where: Indices,
    held: Floats,
    begins: Bits,
    ends: Bits,
    number: int,
    first: int,
    last: int,
    changed: Any,
    kth: int,
    ties: int,
    indices: Indices,
    values: Floats,
    others: Indices,
    rest: Floats,
    size: int,
) -> tuple[int, int]:
    """Those above `kth` and the first `ties` equal to it, to `indices` and `values`.

    All others go to the beginning of `others` and `rest`, and those of the chosen that
    were changed, once more, to the end, which is at `size`, the number of all. Answers
    where the former end and the latter begin. Nothing is guessed: everything is written
    everywhere, and overwritten. What meets in the middle is twice the same.
    """
    taken: Any = 0
    back: Any = 0
    tail: Any = size - 1
    some = len(changed) > 0
    for column in range(2 * first, 2 * last):
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
            rest[np.uintp(back)] = value
            taken += kept
            back += 1 - kept
            if some:
                others[np.uintp(tail)] = j
                rest[np.uintp(tail)] = value
                tail -= kept & changed[np.uintp(i)]
            i += 1
        while i < end:
            others[np.uintp(back)] = where[np.uintp(i)]
            rest[np.uintp(back)] = held[np.uintp(i)]
            back += 1
            i += 1
    return back, tail + 1


@part
def _write(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    indices: Indices,
    values: Floats,
    low: int,
    high: int,
) -> None:
    """Write some of a list to a block; the memory is asked well ahead."""
    bits = chunk_bits(chunk, stride)
    jump = stride - chunk
    for i in range(low, high):
        ahead = min(i + _AHEAD, high - 1)
        prefetch(x, _place(indices, ahead, start, chunk, bits, jump))
        at = _place(indices, i, start, chunk, bits, jump)
        x[np.uintp(at)] = values[np.uintp(i)]


@kernel
def take_lent(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    where: Indices,
    held: Floats,
    begins: Bits,
    ends: Bits,
    number: int,
    first: int,
    last: int,
    changed: Any,
    brain: int,
    kth: int,
    ties: int,
    others: Indices,
    rest: Floats,
    indices: Indices,
    values: Floats,
) -> None:
    """Write what is chosen from a block's lists of some parts; the others go back.

    They are the parts from `first` to before `last`; `kth` and `ties` are `kth_lent`'s.
    Of what is chosen, that which rounding takes off is in `x` already, unless the
    element was `changed` (or that is empty: none was). `others` and `rest`, as long as
    the lists together, are room.
    """
    size = 0
    for t in range(first, last):
        for s in range(2 * number, 2 * number + 2):
            size += ends[t, s] - begins[t, s]
    lists = (where, held, begins, ends, number, first, last, changed, kth, ties)
    end, begin = _sort_out(*lists, indices, values, others, rest, size)
    for i in range(begin, size):
        value = rest[np.uintp(i)]
        rest[np.uintp(i)] = value - (to_brain(value) if brain else value)
    for low, high in ((0, end), (begin, size)):
        _write(x, start, chunk, stride, others, rest, low, high)
