# mypy: disallow-untyped-decorators=False
"""The k largest of a few candidates, exactly: counting, never sorting.

Candidates are the marked elements. Their magnitude bits are counted in bins, the bin
that holds the k-th largest is counted again with finer bins until a bin is one value,
and the candidates are compacted in their own order, which is ascending: the first ones
of equal magnitude are those with the smaller index. About 15 ns per candidate, most of
it waiting for the element to arrive from memory.

This file is complete in itself: numba's disk cache notices a change of the file that
defines a kernel, not of the files it takes helpers from.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numpy.typing import NDArray

from thinwire.kernels.compiled import kernel, part

intrinsic: Any = extending.intrinsic

Floats = NDArray[np.float32]
Bits = NDArray[np.int64]
Indices = NDArray[Any]
Counts = NDArray[np.int32]

MAGNITUDE = 0x7FFFFFFF

_BINS = 1 << 13
# The first count above a known threshold: bins 0.1 % wide, eight octaves of them.
_FINE = 13
# The first count of a list about which nothing is known: every magnitude has its bin.
_COARSE = 18
# Elements that are on their way from memory while one is looked at.
SPARE = 48


@intrinsic
def _trailing_zeros(typing: Any, word: Any) -> Any:
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


@intrinsic
def _ones(typing: Any, word: Any) -> Any:
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.ctpop(args[0])

    return types.int64(types.int64), generate


@intrinsic
def _prefetch(typing: Any, x: Any, p: Any) -> Any:
    del typing, p

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        at = builder.bitcast(builder.gep(array.data, [args[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        name, known = "llvm.prefetch.p0", builder.module.globals
        function = (
            known[name] if name in known else ir.Function(builder.module, kind, name)
        )
        builder.call(function, [at, *(ir.Constant(word, n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(x, types.int64), generate


@intrinsic
def _magnitude(typing: Any, value: Any) -> Any:
    """The bits of |value|: integers in the order of magnitudes, NaN above infinity."""
    del typing, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        mask = ir.Constant(ir.IntType(32), MAGNITUDE)
        bits = builder.and_(builder.bitcast(args[0], ir.IntType(32)), mask)
        return builder.zext(bits, ir.IntType(64))

    return types.int64(types.float32), generate


@intrinsic
def _brain(typing: Any, value: Any) -> Any:
    """A float32 rounded to bfloat16, ties to even; finite values remain finite."""
    del typing, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        word = ir.IntType(32)

        def number(bits: int) -> Any:
            return ir.Constant(word, bits)

        bits = builder.bitcast(args[0], word)
        magnitude = builder.and_(bits, number(MAGNITUDE))
        odd = builder.and_(builder.lshr(magnitude, number(16)), number(1))
        up = builder.add(builder.add(magnitude, number(0x7FFF)), odd)
        cut = builder.and_(up, number(0xFFFF0000))
        over = builder.icmp_unsigned(">", cut, number(0x7F7F0000))
        cut = builder.select(over, number(0x7F7F0000), cut)
        finite = builder.icmp_unsigned("<", magnitude, number(0x7F800000))
        rounded = builder.select(finite, cut, magnitude)
        sign = builder.and_(bits, number(0x80000000))
        return builder.bitcast(builder.or_(rounded, sign), ir.FloatType())

    return types.float32(types.float32), generate


def room_for_counts() -> Counts:
    """What a kernel counts in: allocating it there would take longer to compile."""
    return np.empty(_BINS, np.int32)


@part
def _find(counts: Counts, k: int) -> tuple[int, int]:
    """The bin in which a count from the top reaches `k`, and how many it must give."""
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
def _clear(counts: Counts) -> None:
    for b in range(len(counts)):
        counts[b] = 0


@part
def _refine(
    values: Floats, count: int, k: int, low: int, shift: int, counts: Counts
) -> tuple[int, int]:
    """The k-th largest magnitude, and how many of exactly this magnitude to take.

    `counts` counts `(magnitude - low) >> shift`, the last bin without upper limit; no
    magnitude is below `low`.
    """
    high = MAGNITUDE + 1
    while True:
        b, k = _find(counts, k)
        unlimited = b == _BINS - 1 and high - low > _BINS << shift
        low += b << shift
        if shift == 0:
            return low, k
        if unlimited:
            shift = _COARSE
        else:
            high = low + (1 << shift)
            shift = max(shift - 13, 0)
        _clear(counts)
        _count_between(values, count, low, high, shift, counts)


@part
def _count_between(
    values: Floats, count: int, low: int, high: int, shift: int, counts: Counts
) -> None:
    """Count the few magnitudes from `low` to below `high`.

    Most runs of 16 have none of them, which is found out without a branch for each.
    """
    base = np.uint32(low)
    width = np.uint32(high - low)
    whole = count & ~15
    for i in range(0, whole, 16):
        here = np.uint32(0)
        for t in range(i, i + 16):
            here += np.uint32(np.uint32(_magnitude(values[np.uintp(t)])) - base < width)
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
        m = _magnitude(values[np.uintp(i)])
        if low <= m < high:
            counts[np.uintp(min((m - low) >> shift, _BINS - 1))] += 1


@kernel
def kth_magnitude(values: Floats, k: int, counts: Counts) -> tuple[int, int]:
    """The k-th largest magnitude of a list, and how many of it are among the k."""
    _clear(counts)
    for i in range(len(values)):
        counts[np.uintp(_magnitude(values[i]) >> _COARSE)] += 1
    return _refine(  # type: ignore[no-any-return]
        values, len(values), k, np.int64(0), np.int64(_COARSE), counts
    )


@part
def _count(words: Bits) -> int:
    """How many elements are marked."""
    total = 0
    for w in range(len(words)):
        total += _ones(words[w])
    return total


@part
def _list(words: Bits, marked: int, where: Indices) -> None:
    """The numbers of the elements that are marked, and up to 4 that mean nothing.

    How many are in a word is a coin tossed, and a branch on it would be guessed wrong:
    four are written anyway, and the next word's overwrite those that were none.
    """
    few = marked < len(words) >> 1
    n = 0
    for w in range(len(words)):
        word = words[w]
        if few and word == 0:
            continue
        here: Any = _ones(word)
        first = w << 6
        for i in range(4):
            where[np.uintp(n + i)] = first + _trailing_zeros(word)
            word &= word - 1
        i = 4
        while word != 0:
            where[np.uintp(n + i)] = first + _trailing_zeros(word)
            word &= word - 1
            i += 1
        n += here


@part
def _gather(
    x: Floats,
    start: int,
    chunk: int,
    jump: int,
    threshold: int,
    marked: int,
    where: Indices,
    found: Floats,
    counts: Counts,
) -> int:
    """What `x` holds at each of `where`, counted; what is below is left out.

    The memory needs its time: elements are asked for `SPARE` before they are read.
    """
    bits = _trailing_zeros(chunk) if chunk & (chunk - 1) == 0 else -1
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
        _prefetch(x, start + ahead)
        value = x[np.uintp(start + at)]
        above = _magnitude(value) - threshold
        where[np.uintp(n)] = j
        found[np.uintp(n)] = value
        if above >= 0:
            n += 1
            counts[np.uintp(min(above >> _FINE, _BINS - 1))] += 1
    return n


@part
def _compact(
    where: Indices,
    found: Floats,
    kth: int,
    ties: int,
    indices: Indices,
    values: Floats,
) -> None:
    """Those above `kth`, and the first `ties` that are equal to it."""
    taken: Any = 0
    i = 0
    while taken < len(indices):
        m = _magnitude(found[np.uintp(i)])
        indices[np.uintp(taken)] = where[np.uintp(i)]
        values[np.uintp(taken)] = found[np.uintp(i)]
        tie: Any = np.int64(m == kth)
        taken += np.int64(m > kth) | tie & np.int64(ties > 0)
        ties -= tie
        i += 1


@kernel
def choose(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    words: Bits,
    threshold: int,
    goal: int,
    counts: Counts,
    where: Indices,
    found: Floats,
    indices: Indices,
    values: Floats,
) -> tuple[int, int, int, int]:
    """Write the largest of a block's marked elements, if enough reach `threshold`.

    Answers how many are marked; how many reach the threshold (too few: nothing was
    written), the k-th magnitude, and about the `goal`-th magnitude (0 if there are not
    so many). `where` and `found` are room for all that are marked and `SPARE` more;
    with less room nothing is done. `counts` is room, too.
    """
    marked = _count(words)
    if marked + SPARE > len(where):
        return marked, 0, 0, 0
    k = len(indices)
    _list(words, marked, where)
    last = where[marked - 1] if marked else 0
    for i in range(marked, marked + SPARE):
        where[i] = last
    _clear(counts)
    jump = stride - chunk
    n = _gather(x, start, chunk, jump, threshold, marked, where, found, counts)
    if n < k:
        return marked, n, 0, 0
    reached = 0
    if n >= goal:
        b, _ = _find(counts, goal)
        reached = threshold + (b << _FINE)
    kth, ties = _refine(found, n, k, threshold, np.int64(_FINE), counts)
    _compact(where, found, kth, ties, indices, values)
    return marked, n, kth, reached


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
    begin. As in `_list`, nothing is guessed: everything is written everywhere, and
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
        m = _magnitude(value)
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
    bits = _trailing_zeros(chunk) if chunk & (chunk - 1) == 0 else -1
    bits = bits if jump else 62  # without gaps it does not matter which chunk it is
    for i in range(low, high):
        j: Any = np.int64(indices[np.uintp(min(i + SPARE, high - 1))])
        ahead = start + j + (j >> bits if bits >= 0 else j // chunk) * jump
        _prefetch(x, ahead)
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

    Answers as `choose` does, but for how many are marked. If too few reach the
    threshold, nothing goes back. Of what is chosen, that which rounding takes off is
    in `x` already, unless the element was `changed` (or that is empty: none was).
    `counts`, and `others` and `rest`, each as long as `where`, are room.
    """
    _clear(counts)
    n = 0
    for i in range(len(held)):
        above = _magnitude(held[i]) - threshold
        if above >= 0:
            n += 1
            counts[np.uintp(min(above >> _FINE, _BINS - 1))] += 1
    k = len(indices)
    if n < k:
        return n, 0, 0
    reached = 0
    if n >= goal:
        b, _ = _find(counts, goal)
        reached = threshold + (b << _FINE)
    kth, ties = _refine(held, len(held), k, threshold, np.int64(_FINE), counts)
    listed = (where, held, changed, kth, ties, indices, values, others, rest)
    end, begin = _sort_out(*listed)
    for i in range(begin, len(held)):
        value = rest[np.uintp(i)]
        rest[np.uintp(i)] = value - (_brain(value) if brain else value)
    _write(x, start, chunk, stride, others, rest, 0, end)
    _write(x, start, chunk, stride, others, rest, begin, len(held))
    return n, kth, reached


@kernel
def choose_with_zeros(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    words: Bits,
    zeros: int,
    indices: Indices,
    values: Floats,
) -> None:
    """Write a block's non-zero elements, all marked, and its first `zeros` zeros."""
    taken = 0
    for w in range(len(words)):
        word = words[w] if zeros == 0 else np.int64(-1)
        while word != 0:
            j = (w << 6) + _trailing_zeros(word)
            word &= word - 1
            if j >= length or taken == len(indices):
                return
            value = x[start + j // chunk * stride + j % chunk]
            zero: Any = np.int64(_magnitude(value) == 0)
            if zero <= zeros:
                zeros -= zero
                indices[taken] = j
                values[taken] = value
                taken += 1


@kernel
def sample(
    x: Floats,
    start: int,
    chunk: int,
    stride: int,
    length: int,
    found: Floats,
) -> None:
    """Elements of a block, 16 neighbours (a cache line) at a time, spread evenly."""
    groups = len(found) // 16
    step = length // groups
    for group in range(groups):
        # Scattered within its step, so that no period of the data is in tune with it.
        j = group * step + group * 0x9E3779B1 % (step - 15)
        for i in range(16):
            found[group * 16 + i] = x[start + j // chunk * stride + j % chunk]
            j += 1


@kernel
def partition(
    counts: Counts,
    k: int,
    indices: Indices,
    values: Floats,
    kept: Indices,
    kept_values: Floats,
    dropped: Indices,
    dropped_values: Floats,
) -> None:
    """The `k` largest of a list, and the others. `counts` is room."""
    kth, ties = kth_magnitude(values, k, counts)
    taken = 0
    left = 0
    for i in range(len(values)):
        m = _magnitude(values[i])
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
