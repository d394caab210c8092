"""The dense pass that takes candidates out of the vector while they are in the cache.

`loans` says what it is to lend.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import magnitude, to_brain, trailing_zeros
from thinwire.kernels.cpu.passes import accumulate_64, run, widen
from thinwire.kernels.cpu.select import clear, tally

Floats = NDArray[np.float32]
Bits = NDArray[np.int64]
Counts = NDArray[np.int32]
# float32, or the bits of bfloat16 as uint16.
Gradient = NDArray[Any]

# A threshold that no magnitude reaches, not that of a NaN either.
_NEVER = np.int64(0x80000000)


@kernel
def accumulate_and_lend(
    starts: Bits,
    thresholds: NDArray[Any],
    chunk: int,
    begins: Bits,
    limits: Bits,
    fills: Bits,
    sizes: Bits,
    counts: Counts,
    where: NDArray[Any],
    held: Floats,
    brain: int,
    x: Floats,
    grad: Gradient,
    scale: Any,
    low: int,
    middle: int,
    high: int,
) -> bool:
    """`passes.accumulate`, and candidates leave `x` for a list while at hand.

    Of a candidate only that stays which rounding takes off, if it is sent; to bfloat16
    if `brain`. Block b has two lists, 2b of what lies before `middle` and 2b + 1 of
    what lies behind; where blocks take chunks in turn, `low` and `middle` are at the
    beginning of one. A list goes from its `begins` to its `limits` at most, and to its
    `fills` then; when there is no room for a word more, it takes no more. `counts[b]`
    is the block's `tally`, and `sizes[b]` how many it has listed; -1, if one of its
    lists was too short. Answers whether one was.
    """
    for number in range(len(fills)):
        fills[number] = begins[number]
    p = end_p = low
    q = end_q = middle
    n = m = last_n = last_m = here = there = 0
    i = j = 0
    b = c = -1
    factor = np.float32(scale)
    lists = (where, held, limits, fills)
    least_p = least_q = np.int64(0)
    blocks = len(thresholds)
    while p < middle and q < high:
        if p == end_p:
            b, i, end_p = _next_run(starts, blocks, chunk, p, middle, b, i)
            here = 2 * b
            n, last_n, least_p = _list(fills, limits, here, thresholds[b])
        if q == end_q:
            c, j, end_q = _next_run(starts, blocks, chunk, q, high, c, j)
            there = 2 * c + 1
            m, last_m, least_q = _list(fills, limits, there, thresholds[c])
        for _ in range(min(end_p - p, end_q - q) >> 6):
            word = accumulate_64(x, p, grad, p, factor, least_p)
            n = _lend(x, p, word, brain, where, held, n, i)
            if n > last_n:
                least_p = _NEVER
            word = accumulate_64(x, q, grad, q, factor, least_q)
            m = _lend(x, q, word, brain, where, held, m, j)
            if m > last_m:
                least_q = _NEVER
            p += 64
            q += 64
            i += 64
            j += 64
        fills[here] = _fill(n, least_p)
        fills[there] = _fill(m, least_q)
        if 0 < end_p - p < 64:
            least = thresholds[here >> 1]
            _finish(x, grad, factor, p, end_p, i, brain, least, *lists, here)
            i += end_p - p
            p = end_p
        if 0 < end_q - q < 64:
            least = thresholds[there >> 1]
            _finish(x, grad, factor, q, end_q, j, brain, least, *lists, there)
            j += end_q - q
            q = end_q
    for side in range(2):  # one of them is done, and the other nearly, as a rule
        at, limit = (q, high) if side else (p, middle)
        while at < limit:
            b, i, end = run(starts, blocks, chunk, at, limit)
            number = 2 * b + side
            _finish(x, grad, factor, at, end, i, brain, thresholds[b], *lists, number)
            at = end
    short = False
    for b in range(blocks):
        n, m = fills[2 * b], fills[2 * b + 1]
        full = n < 0 or m < 0
        fills[2 * b] = max(n, -1 - n)
        fills[2 * b + 1] = max(m, -1 - m)
        size = fills[2 * b] - begins[2 * b] + fills[2 * b + 1] - begins[2 * b + 1]
        sizes[b] = -1 if full else size
        short = short or full
        # Now that they are still in the cache, and not in the pass, which would wait.
        clear(counts[b])
        for number in (2 * b, 2 * b + 1):
            for e in range(begins[number], fills[number]):
                tally(counts, b, magnitude(held[np.uintp(e)]) - thresholds[b])
    return short


@part
def _next_run(
    starts: Bits, blocks: int, chunk: int, p: int, limit: int, b: int, j: int
) -> tuple[int, int, int]:
    """`run`, where one of block `b` (-1: none yet) has just ended before its `j`.

    It takes divisions, and chunks are many: the next one is the next block's.
    """
    if chunk == 0 or b < 0:
        return run(starts, blocks, chunk, p, limit)  # type: ignore[no-any-return]
    end = min(p + chunk, limit)
    if b + 1 < blocks:
        return b + 1, j - chunk, end
    return 0, j, end


@part
def _list(fills: Bits, limits: Bits, number: int, threshold: int) -> Any:
    """Where a list is to be continued, the last place for a word, and for whom.

    Of a list that takes no more the fill is told as -1 - fill.
    """
    n = fills[number]
    last = limits[number] - 64
    if n < 0:
        return -1 - n, last, _NEVER
    return n, last, np.int64(threshold) if n <= last else _NEVER


@part
def _fill(n: int, least: int) -> int:
    return -1 - n if least == _NEVER else n


@part
def _lend(
    x: Floats,
    p: int,
    word: int,
    brain: int,
    where: NDArray[Any],
    held: Floats,
    n: int,
    first: int,
) -> int:
    while word != 0:
        bit: Any = trailing_zeros(word)
        value = x[np.uintp(p + bit)]
        where[np.uintp(n)] = first + bit
        held[np.uintp(n)] = value
        x[np.uintp(p + bit)] = value - (to_brain(value) if brain else value)
        word &= word - 1
        n += 1
    return n


@part
def _finish(
    x: Floats,
    grad: Gradient,
    scale: Any,
    p: int,
    end: int,
    i: int,
    brain: int,
    threshold: int,
    where: NDArray[Any],
    held: Floats,
    limits: Bits,
    fills: Bits,
    number: int,
) -> None:
    """To the end of a run, from one place alone."""
    n, last, least = _list(fills, limits, number, threshold)
    while p < end:
        if end - p >= 64:
            word = accumulate_64(x, p, grad, p, scale, least)
        else:
            word = np.int64(0)
            for bit in range(end - p):
                value = x[p + bit] * scale + widen(grad[p + bit])
                x[p + bit] = value
                grad[p + bit] = 0
                word |= np.int64(magnitude(value) >= least) << bit
        n = _lend(x, p, word, brain, where, held, n, i)
        if n > last:
            least = _NEVER
        p += 64
        i += 64
    fills[number] = _fill(n, least)
