# mypy: disallow-untyped-decorators=False
"""Lists of what a block has lent: add to them, and choose the largest of them.

`cpu_loans` says what it is to lend.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.kernels.compiled import kernel, part
from thinwire.kernels.cpu_intrinsics import (
    magnitude,
    prefetch,
    to_brain,
    trailing_zeros,
)
from thinwire.kernels.cpu_lists import chunk_bits
from thinwire.kernels.cpu_select import BINS, FINE, clear, find, refine

Floats = NDArray[np.float32]
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
    i = 0
    n = 0
    for e in range(len(indices)):
        # The memory needs its time: elements are asked for before they are read.
        j: Any = np.int64(indices[np.uintp(min(e + _AHEAD, len(indices) - 1))])
        prefetch(x, start + j + (j >> bits if bits >= 0 else j // chunk) * jump)
        j = np.int64(indices[np.uintp(e)])
        while i < len(lent) and lent[np.uintp(i)] < j:
            where[np.uintp(n)] = lent[np.uintp(i)]
            sums[np.uintp(n)] = held[np.uintp(i)]
            changed[np.uintp(n)] = 0 if same else before[np.uintp(i)]
            i += 1
            n += 1
        if i < len(lent) and lent[np.uintp(i)] == j:
            value = held[np.uintp(i)]
            i += 1
        else:
            at = start + j + (j >> bits if bits >= 0 else j // chunk) * jump
            value = x[np.uintp(at)]
        where[np.uintp(n)] = j
        sums[np.uintp(n)] = value + values[np.uintp(e)]
        changed[np.uintp(n)] = 1
        n += 1
    while i < len(lent):
        where[np.uintp(n)] = lent[np.uintp(i)]
        sums[np.uintp(n)] = held[np.uintp(i)]
        changed[np.uintp(n)] = 0 if same else before[np.uintp(i)]
        i += 1
        n += 1
    return n


@part
def _sort_out(
    where: Indices,
    held: Floats,
    changed: Any,
    kth: int,
    ties: int,
    indices: Indices,
    values: Floats,
    others: Indices,
    rest: Floats,
) -> tuple[int, int]:
    """Those above `kth` and the first `ties` equal to it, to `indices` and `values`.

    All others go to the beginning of `others` and `rest`, and those of the chosen that
    were changed, once more, to the end. Answers where the former end and the latter
    begin. Nothing is guessed: everything is written everywhere, and
    overwritten. What meets in the middle is twice the same.
    """
    taken: Any = 0
    back: Any = 0
    last: Any = len(held) - 1
    some = len(changed) > 0
    i = 0
    while taken < len(indices):
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
            others[np.uintp(last)] = j
            rest[np.uintp(last)] = value
            last -= kept & changed[np.uintp(i)]
        i += 1
    while i < len(held):
        others[np.uintp(back)] = where[np.uintp(i)]
        rest[np.uintp(back)] = held[np.uintp(i)]
        back += 1
        i += 1
    return back, last + 1


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
    jump = stride - chunk
    bits = trailing_zeros(chunk) if chunk & (chunk - 1) == 0 else -1
    bits = bits if jump else 62  # without gaps it does not matter which chunk it is
    for i in range(low, high):
        j: Any = np.int64(indices[np.uintp(min(i + _AHEAD, high - 1))])
        ahead = start + j + (j >> bits if bits >= 0 else j // chunk) * jump
        prefetch(x, ahead)
        j = np.int64(indices[np.uintp(i)])
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * jump
        x[np.uintp(at)] = values[np.uintp(i)]


@kernel
def choose_lent(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    where: Indices,
    held: Floats,
    changed: Any,
    brain: int,
    threshold: int,
    goal: int,
    counts: Counts,
    others: Indices,
    rest: Floats,
    indices: Indices,
    values: Floats,
) -> tuple[int, int, int]:
    """Write the largest of the elements that a block has lent; the others go back.

    Answers as `cpu_select.choose` does, but for how many are marked. If too few reach
    the threshold, nothing goes back. Of what is chosen, that which rounding takes off
    is in `x` already, unless the element was `changed` (or that is empty: none was).
    `counts`, and `others` and `rest`, each as long as `where`, are room.
    """
    clear(counts)
    n = 0
    for i in range(len(held)):
        above = magnitude(held[i]) - threshold
        if above >= 0:
            n += 1
            counts[np.uintp(min(above >> FINE, BINS - 1))] += 1
    k = len(indices)
    if n < k:
        return n, 0, 0
    reached = 0
    if n >= goal:
        b, _ = find(counts, goal)
        reached = threshold + (b << FINE)
    kth, ties = refine(held, len(held), k, threshold, np.int64(FINE), counts)
    listed = (where, held, changed, kth, ties, indices, values, others, rest)
    end, begin = _sort_out(*listed)
    for i in range(begin, len(held)):
        value = rest[np.uintp(i)]
        rest[np.uintp(i)] = value - (to_brain(value) if brain else value)
    _write(x, start, chunk, stride, others, rest, 0, end)
    _write(x, start, chunk, stride, others, rest, begin, len(held))
    return n, kth, reached
