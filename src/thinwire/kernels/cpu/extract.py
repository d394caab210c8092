"""The dense pass that extracts candidates while they are in the cache.

A candidate is an element whose magnitude reaches its block's threshold. It leaves the
vector for one of the lists that `extraction` describes. The vector keeps what it
would keep if the element were taken: zero, or the error of rounding to bfloat16.
"""

from typing import Any

import numpy as np

from thinwire.kernels.cpu.arrays import (
    Before,
    Bits,
    Counts,
    Floats,
    Gradient,
    Indices,
)
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import magnitude, to_bf16, trailing_zeros
from thinwire.kernels.cpu.lanes import accumulate_64, keep, widen
from thinwire.kernels.cpu.passes import run
from thinwire.kernels.cpu.select import clear, tally

# A threshold that no magnitude reaches, not that of a NaN either.
_NEVER = np.int64(0x80000000)


@kernel
def accumulate_and_extract(
    layout: tuple[Bits, Indices, int],
    lists: tuple[Indices, Floats, Bits, Bits],
    limits: Bits,
    sums: tuple[Bits, Counts],
    row: int,
    bf16: bool,  # noqa: FBT001
    x: Floats,
    grad: Gradient,
    scale: Any,
    before: Before,
    span: tuple[int, int, int],
) -> bool:
    """`x = x * scale + grad; grad = 0` in a `span`, and extract its candidates.

    `before` keeps the elements of `x` as they were, unless it is empty.

    `span` is (low, middle, high): the parts before and after `middle` advance in turns.
    `layout` is (starts, thresholds, chunk) of the blocks, see `passes.run`; if blocks
    are interleaved, low and middle are where a chunk begins. Candidates of block b
    before `middle` go to list 2b, others to list 2b + 1, in row `row` of `lists`. A
    list ends at its entry of `limits` at most; one without space for a word is closed.
    `sums` is (sizes, counts): the number of entries of each block, -1 if one of its
    lists was closed, and their `tally`. Returns whether any list was closed.
    """
    starts, thresholds, chunk = layout
    where, held, begins, ends = lists[0], lists[1], lists[2][row], lists[3][row]
    sizes, counts = sums[0][row], sums[1][row]
    limits = limits[row]
    low, middle, high = span
    for number in range(len(ends)):
        ends[number] = begins[number]
    p = end_p = low
    q = end_q = middle
    n = m = last_n = last_m = here = there = 0
    i = j = 0
    b = c = -1
    factor = np.float32(scale)
    to = (where, held, limits, ends)
    by = (x, grad, factor, bf16, before)
    least_p = least_q = np.int64(0)
    blocks = len(thresholds)
    while p < middle and q < high:
        if p == end_p:
            b, i, end_p = _next_run(starts, blocks, chunk, p, middle, (b, i))
            here = 2 * b
            n, last_n, least_p = _open(ends, limits, here, thresholds[b])
        if q == end_q:
            c, j, end_q = _next_run(starts, blocks, chunk, q, high, (c, j))
            there = 2 * c + 1
            m, last_m, least_q = _open(ends, limits, there, thresholds[c])
        for _ in range(min(end_p - p, end_q - q) >> 6):
            word = accumulate_64(x, p, grad, p, factor, least_p, before)
            n = _extract(x, p, word, bf16, where, held, n, i)
            if n > last_n:
                least_p = _NEVER
            word = accumulate_64(x, q, grad, q, factor, least_q, before)
            m = _extract(x, q, word, bf16, where, held, m, j)
            if m > last_m:
                least_q = _NEVER
            p += 64
            q += 64
            i += 64
            j += 64
        ends[here] = _end(n, least_p)
        ends[there] = _end(m, least_q)
        if 0 < end_p - p < 64:
            _finish(by, p, end_p, i, thresholds[here >> 1], to, here)
            i += end_p - p
            p = end_p
        if 0 < end_q - q < 64:
            _finish(by, q, end_q, j, thresholds[there >> 1], to, there)
            j += end_q - q
            q = end_q
    for side in range(2):  # usually one side is done and the other almost
        at, limit = (q, high) if side else (p, middle)
        while at < limit:
            b, i, end = run(starts, blocks, chunk, at, limit)
            _finish(by, at, end, i, thresholds[b], to, 2 * b + side)
            at = end
    closed = False
    for b in range(blocks):
        n, m = ends[2 * b], ends[2 * b + 1]
        full = n < 0 or m < 0
        ends[2 * b] = max(n, -1 - n)
        ends[2 * b + 1] = max(m, -1 - m)
        size = ends[2 * b] - begins[2 * b] + ends[2 * b + 1] - begins[2 * b + 1]
        sizes[b] = -1 if full else size
        closed = closed or full
        # Counted here, while entries are in the cache: in the pass it would stall.
        clear(counts[b])
        for number in (2 * b, 2 * b + 1):
            for e in range(begins[number], ends[number]):
                tally(counts, b, magnitude(held[np.uintp(e)]) - thresholds[b])
    return closed


@part
def _next_run(
    starts: Bits, blocks: int, chunk: int, p: int, limit: int, last: tuple[int, int]
) -> tuple[int, int, int]:
    """`run`, given the block (-1: none) and the index at which the last run ended.

    This avoids divisions: the next chunk is the next block's.
    """
    b, j = last
    if chunk == 0 or b < 0:
        return run(starts, blocks, chunk, p, limit)  # type: ignore[no-any-return]
    end = min(p + chunk, limit)
    if b + 1 < blocks:
        return b + 1, j - chunk, end
    return 0, j, end


@part
def _open(ends: Bits, limits: Bits, number: int, threshold: int) -> Any:
    """Where a list continues, the last place where a word fits, and its threshold.

    The end of a closed list is stored as -1 - end.
    """
    n = ends[number]
    last = limits[number] - 64
    if n < 0:
        return -1 - n, last, _NEVER
    return n, last, np.int64(threshold) if n <= last else _NEVER


@part
def _end(n: int, least: int) -> int:
    return -1 - n if least == _NEVER else n


@part
def _extract(
    x: Floats,
    p: int,
    word: int,
    bf16: bool,  # noqa: FBT001
    where: Indices,
    held: Floats,
    n: int,
    first: int,
) -> int:
    """Move the elements of a word of marks to a list; returns the list's new end."""
    while word != 0:
        bit: Any = trailing_zeros(word)
        value = x[np.uintp(p + bit)]
        where[np.uintp(n)] = first + bit
        held[np.uintp(n)] = value
        x[np.uintp(p + bit)] = value - (to_bf16(value) if bf16 else value)
        word &= word - 1
        n += 1
    return n


@part
def _finish(
    by: Any, p: int, end: int, i: int, threshold: int, to: Any, number: int
) -> None:
    """Process the rest of a run, element by element."""
    x, grad, scale, bf16, before = by
    where, held, limits, ends = to
    n, last, least = _open(ends, limits, number, threshold)
    while p < end:
        if end - p >= 64:
            word = accumulate_64(x, p, grad, p, scale, least, before)
        else:
            word = np.int64(0)
            for bit in range(end - p):
                keep(before, p + bit, x[p + bit])
                value = x[p + bit] * scale + widen(grad[p + bit])
                x[p + bit] = value
                grad[p + bit] = 0
                word |= np.int64(magnitude(value) >= least) << bit
        n = _extract(x, p, word, bf16, where, held, n, i)
        if n > last:
            least = _NEVER
        p += 64
        i += 64
    ends[number] = _end(n, least)
