"""Passes over every element, at the speed of memory: accumulate and mark.

An accumulate pass that also zeroes the gradient and marks candidates takes the time
of `x.add_(grad)`; a reading pass takes a third of that.
"""

from typing import Any

import numpy as np

from thinwire.kernels.cpu.arrays import (
    Before,
    Bits,
    Floats,
    Gradient,
    Indices,
    Place,
)
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import magnitude
from thinwire.kernels.cpu.lanes import accumulate_64, keep, mark_64, widen


@kernel
def accumulate(
    x: Floats,
    offset: int,
    grad: Gradient,
    scale: Any,
    before: Before,
    low: int,
    high: int,
) -> None:
    """`x = x * scale + grad; grad = 0` for the elements `low` to `high` of `x`.

    `before` keeps them as they were, unless it is empty.
    """
    words = (high - low) >> 7
    p = low
    q = low + (words << 6)
    for _ in range(words):
        accumulate_64(x, p, grad, p - offset, scale, 0, before)
        accumulate_64(x, q, grad, q - offset, scale, 0, before)
        p += 64
        q += 64
    while q < high:
        keep(before, q, x[q])
        x[q] = x[q] * scale + widen(grad[q - offset])
        grad[q - offset] = 0
        q += 1


@kernel
def accumulate_and_mark(
    words: Bits,
    layout: tuple[Bits, Bits, Indices, int],
    x: Floats,
    offset: int,
    grad: Gradient,
    scale: Any,
    before: Before,
    span: tuple[int, int, int],
) -> None:
    """`accumulate` from low to high of a `span`, and the marks of these elements.

    `span` is (low, middle, high): the parts before and after `middle`, which is not
    inside a word of marks, advance in turns. `layout` is (starts, firsts, thresholds,
    chunk): if `chunk` is 0, block b begins at `starts[b]` (there is one more start than
    blocks), otherwise the blocks are interleaved. Its words begin at `firsts[b]`.
    """
    starts, firsts, thresholds, chunk = layout
    low, middle, high = span
    by = (x, grad, scale, before)
    p = end_p = low
    q = end_q = middle
    w = v = 0
    least_p = least_q = np.int64(0)
    while True:
        while p == end_p and p < middle:
            b, j, end = run(starts, len(firsts), chunk, p, middle)
            w = firsts[b] + (j >> 6)
            least_p = np.int64(thresholds[b])
            p = _edge(words, w, j & 63, least_p, by, p, p - offset, end)
            w = firsts[b] + ((j + p - end_p) >> 6)
            end_p = p + (end - p) // 64 * 64
        while q == end_q and q < high:
            b, j, end = run(starts, len(firsts), chunk, q, high)
            v = firsts[b] + (j >> 6)
            least_q = np.int64(thresholds[b])
            q = _edge(words, v, j & 63, least_q, by, q, q - offset, end)
            v = firsts[b] + ((j + q - end_q) >> 6)
            end_q = q + (end - q) // 64 * 64
        if p == end_p or q == end_q:
            break
        for _ in range(min(end_p - p, end_q - q) >> 6):
            words[w] = accumulate_64(x, p, grad, p - offset, scale, least_p, before)
            words[v] = accumulate_64(x, q, grad, q - offset, scale, least_q, before)
            p += 64
            q += 64
            w += 1
            v += 1
    # One side is done. The other has a few words left, or all if the first was empty.
    if q == end_q:
        q, end_q, v, least_q, high = p, end_p, w, least_p, middle
    while q < high:
        while q < end_q:
            words[v] = accumulate_64(x, q, grad, q - offset, scale, least_q, before)
            q += 64
            v += 1
        while q == end_q and q < high:
            b, j, end = run(starts, len(firsts), chunk, q, high)
            v = firsts[b] + (j >> 6)
            least_q = np.int64(thresholds[b])
            q = _edge(words, v, j & 63, least_q, by, q, q - offset, end)
            v = firsts[b] + ((j + q - end_q) >> 6)
            end_q = q + (end - q) // 64 * 64


@part
def run(
    starts: Bits, blocks: int, chunk: int, p: int, limit: int
) -> tuple[int, int, int]:
    """The block of an element, its index there, and where its run ends."""
    if chunk:
        number = p // chunk
        b = number % blocks
        j = number // blocks * chunk + p - number * chunk
        return b, j, min((number + 1) * chunk, limit)
    b = 0
    while p >= starts[b + 1]:
        b += 1
    return b, p - starts[b], min(starts[b + 1], limit)


@part
def _edge(
    words: Bits,
    w: int,
    bit: int,
    threshold: int,
    by: Any,
    p: int,
    q: int,
    end: int,
) -> int:
    """Process single elements up to the beginning of a whole word, or to the end.

    Only the bits of these elements change. `by` is (x, grad, scale, before).
    """
    x, grad, scale, before = by
    while p < end and (bit or p + 64 > end):
        keep(before, p, x[p])
        value = x[p] * scale + widen(grad[q])
        x[p] = value
        grad[q] = 0
        mark = np.int64(1) << bit
        if magnitude(value) >= threshold:
            words[w] |= mark
        else:
            words[w] &= ~mark
        p += 1
        q += 1
        bit = (bit + 1) & 63
        w += bit == 0
    return p


@kernel
def mark(place: Place, words: Bits, threshold: int) -> None:
    """The marks of one block, in a reading pass."""
    x, start, chunk, stride, length = place
    for w in range(len(words)):
        j = w << 6
        within = j % chunk
        p = start + j // chunk * stride + within
        if within + 64 <= chunk and j + 64 <= length:
            words[w] = mark_64(x, p, threshold)
            continue
        marks = np.int64(0)
        for bit in range(min(64, length - j)):
            marks |= np.int64(magnitude(x[p]) >= threshold) << bit
            p += 1
            within += 1
            if within == chunk:
                within = 0
                p += stride - chunk
        words[w] = marks
