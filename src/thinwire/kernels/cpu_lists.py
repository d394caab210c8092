# mypy: disallow-untyped-decorators=False
"""Loops over sparse lists: merge two, read and write a block's elements.

About 5 ns an entry where the vector is cold, 1 ns where it is not. An index outside its
block is never followed: the loop stops and answers False.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.kernels.compiled import kernel, part

Floats = NDArray[np.float32]
Bits = NDArray[np.int64]
Indices = NDArray[Any]


@kernel
def merge_add(
    left: Indices,
    left_values: Floats,
    right: Indices,
    right_values: Floats,
    indices: Indices,
    values: Floats,
) -> int:
    """The sum of two ascending lists; answers how long it is."""
    i = 0
    j = 0
    n = 0
    # -0.0 is what changes nothing when added, not even the sign of a zero.
    nothing = np.float32(-0.0)
    while i < len(left) and j < len(right):
        a = left[i]
        b = right[j]
        from_left = a <= b
        from_right = b <= a
        u = left_values[i]
        v = right_values[j]
        indices[n] = a if from_left else b
        values[n] = (u if from_left else nothing) + (v if from_right else nothing)
        i += from_left
        j += from_right
        n += 1
    while i < len(left):
        indices[n] = left[i]
        values[n] = left_values[i]
        i += 1
        n += 1
    while j < len(right):
        indices[n] = right[j]
        values[n] = right_values[j]
        j += 1
        n += 1
    return n


# Element j of a block lies behind as many gaps between chunks as there are whole
# chunks before it. Chunks are a power of two, as a rule, and dividing by it is a shift:
# to walk from chunk to chunk instead is a branch that is guessed wrong at each.


@part
def chunk_bits(chunk: int, stride: int) -> int:
    """By how much to shift instead of dividing by a chunk; -1 where that will not do.

    Where there are no gaps, it does not matter which chunk an element is in.
    """
    if stride == chunk:
        return 62
    bits = 0
    while 1 << bits < chunk:
        bits += 1
    return bits if 1 << bits == chunk else -1


@kernel
def gather(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    indices: Indices,
    values: Floats,
) -> bool:
    """`values = x[indices]`."""
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        values[i] = x[np.uintp(at)]
    return True


@kernel
def scatter(
    out: NDArray[Any],
    start: int,
    chunk: int,
    stride: int,
    length: int,
    indices: Indices,
    values: NDArray[Any],
) -> bool:
    """`out[indices] = values`."""
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        out[np.uintp(at)] = values[i]
    return True


@kernel
def add_at(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    indices: Indices,
    values: Floats,
    sign: Any,
    words: Bits,
) -> bool:
    """`x[indices] += sign * values`, marked in `words` unless that is empty."""
    bits = chunk_bits(chunk, stride)
    marking = len(words) > 0
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        x[np.uintp(at)] += sign * values[i]
        if marking:
            words[np.uintp(j >> 6)] |= np.int64(1) << (j & 63)
    return True


@kernel
def leave_at(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    indices: Indices,
    held: Floats,
    sent: Floats,
) -> bool:
    """`x[indices] = held - sent`."""
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        x[np.uintp(at)] = held[i] - sent[i]
    return True


@kernel
def interleave(
    local: Indices,
    values: Floats,
    at: Bits,
    ends: Bits,
    chunk: int,
    indices: Indices,
    joined: Floats,
) -> None:
    """One ascending list from those of blocks that are dealt chunks in turn.

    Block b's own runs from `at[b]`, which moves there, to `ends[b]`.
    """
    count = len(ends)
    n = 0
    row = 0
    while n < len(local):
        limit = (row + 1) * chunk
        for b in range(count):
            shift = chunk * (b + row * (count - 1))
            i = at[b]
            end = ends[b]
            while i < end and local[np.uintp(i)] < limit:
                indices[np.uintp(n)] = local[np.uintp(i)] + shift
                joined[np.uintp(n)] = values[np.uintp(i)]
                i += 1
                n += 1
            at[b] = i
        row += 1


@kernel
def strictly_increasing(indices: Indices, size: int) -> bool:
    """Whether every index is larger than the one before, from 0 to below `size`."""
    falls: Any = np.int64(indices[0] < 0) + np.int64(indices[-1] >= size)
    for i in range(1, len(indices)):
        falls += indices[i] <= indices[i - 1]
    return bool(falls == 0)
