"""Bitmaps and Elias-Fano lists: one launch to write them, two to read them.

Both are a vector of bits with a one per entry: in a bitmap at its index; in an
Elias-Fano list at the index without the low bits, plus the entry's number. To write, a
program owns a run of entries: it joins those that share a word, writes the words that
end with an entry of its own, and zeros where there is none. To read, ones are counted
by groups of words, then each program knows how many are before its own.

Received bytes are checked while they are read: a flag on the device is set if they are
invalid. Where it must be read at once, the reference raises the error.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.bits import as_words, packed_word, unpacked
from thinwire.kernels.cuda.launch import (
    EXACT,
    LONGEST,
    await_others,
    cdiv,
    flat,
    following,
    kernel,
)
from thinwire.kernels.deferred_errors import must_raise
from thinwire.kernels.reference import elias_fano as reference
from thinwire.kernels.sections import check_length, index_dtype

# Words of a program that writes low bits, and entries that one that writes ones reads:
# its own, and those before them that may share a word with the first.
WRITING: dict[str, int] = {"lows": 128, "ones": 1024, "num_warps": 4}
# Words of a group, which one program reads, and groups that one program counts.
GROUP: Any = tl.constexpr(32)
GROUPS: Any = tl.constexpr(32)
CHECKED: Any = tl.constexpr(1024)
SHARING: Any = tl.constexpr(32)


@kernel
def _join(word, bits, next_word, more) -> Any:
    return next_word, tl.where(word == next_word, bits | more, more)


@kernel
def _write_lows(
    indices, words, p, nnz, start, low: tl.constexpr, lows: tl.constexpr
) -> None:
    """Words of nothing but low bits."""
    w = p.to(start.dtype) * lows + tl.arange(0, lows)
    word = packed_word(indices, w, nnz, low).to(tl.int32)
    tl.store(words + w, word, mask=(w + 1) * 32 <= start)


@kernel
def _last_lows(indices, nnz, start, low: tl.constexpr) -> Any:
    """The low bits in the word in which the ones start."""
    i = (nnz - 1 - tl.arange(0, 32)).to(start.dtype)
    at = i * low - (start & -32)
    reaching = (i >= 0) & (at + low > 0)
    value = tl.load(indices + i, mask=reaching, other=0).to(start.dtype)
    value &= (tl.full([32], 1, start.dtype) << low) - 1
    back = tl.where(at < 0, tl.minimum(-at, low), 0)
    ahead = tl.where(at < 0, 0, at)
    return tl.sum(tl.where(reaching, (value >> back) << ahead, 0)).to(tl.int32)


@kernel
def _write_ones(
    indices,
    words,
    p,
    count,
    nnz,
    size,
    start,
    low: tl.constexpr,
    step: tl.constexpr,
    ones: tl.constexpr,
) -> None:
    first = p * (ones - SHARING)
    i = first - SHARING + tl.arange(0, ones)
    inside = (i >= 0) & (i < nnz)
    index = tl.load(indices + i, mask=inside, other=0).to(start.dtype)
    inside = inside & (index >= 0) & (index < size)
    bit = start + (index >> low) + step * i
    word = tl.where(inside, bit >> 5, -1).to(tl.int32)
    one = tl.full([ones], 1, tl.int32) << (bit & 31).to(tl.int32)
    word, joined = tl.associative_scan((word, one), 0, _join)
    there = (i >= 0) & (i + 1 < nnz)
    after = tl.load(indices + i + 1, mask=there, other=0).to(start.dtype)
    next_word = (start + (after >> low) + step * (i + 1)) >> 5
    last = inside & (i >= first) & (~there | (next_word != word))
    # What the ones share a word with, and only the first program needs.
    shared = (start >> 5).to(tl.int32)
    rest = tl.zeros([], tl.int32)
    if low > 0:
        rest = _last_lows(indices, tl.where(p == 0, nnz, 0), start, low)
    # Zeros from the last word of the program before to the last of this one.
    begin = tl.maximum(tl.max(tl.where(i < first, word, -1)) + 1, shared)
    end = tl.where(first + ones - SHARING < nnz, tl.max(word), count)
    for begun in range(begin, end, ones):
        w = begun + tl.arange(0, ones)
        tl.store(words + w, tl.where(w == shared, rest, 0), mask=w < end)
    tl.debug_barrier()
    joined = tl.where(word == shared, joined | rest, joined)
    tl.store(words + word, joined, mask=last)


@kernel
def write_section(
    indices,
    words,
    p,
    count,
    nnz,
    size,
    one_programs,
    low: tl.constexpr,
    step: tl.constexpr,
    wide: tl.constexpr,
    lows: tl.constexpr,
    ones: tl.constexpr,
) -> None:
    """The part of program `p` in all words of a section, padding included."""
    start = (p.to(tl.int64 if wide else tl.int32) * 0 + nnz) * low
    if p < one_programs:
        _write_ones(indices, words, p, count, nnz, size, start, low, step, ones)
    elif low > 0:
        _write_lows(indices, words, p - one_programs, nnz, start, low, lows)


@kernel
def _encode(
    indices,
    words,
    count,
    nnz,
    size,
    one_programs,
    low: tl.constexpr,
    step: tl.constexpr,
    wide: tl.constexpr,
    lows: tl.constexpr,
    ones: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    await_others(waiting, admitting=True)
    p = tl.program_id(0)
    write_section(
        indices, words, p, count, nnz, size, one_programs, low, step, wide, lows, ones
    )


@kernel
def _population(word) -> Any:
    """How many bits of each word are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return (word + (word >> 16)) & 0x3F


@kernel
def _ones(words, w, start, count) -> Any:
    """Words of the vector of ones; what precedes it in its first word is left out."""
    word = tl.load(words + w, mask=w < count, other=0)
    before = (tl.full(w.shape, 1, tl.int32) << (start & 31).to(tl.int32)) - 1
    return tl.where(w == start >> 5, word & ~before, word)


@kernel
def _count(
    words,
    start,
    count,
    groups,
    totals,
    invalid,
    wide: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    """Ones before each group among those of its program, and of each program."""
    await_others(waiting, admitting=True)
    p = tl.program_id(0)
    start = p.to(tl.int64 if wide else tl.int32) * 0 + start
    g = p * GROUPS + tl.arange(0, GROUPS)
    w = (start >> 5) + g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    found = tl.sum(_population(_ones(words, w, start, count)), axis=1)
    tl.store(groups + g, tl.cumsum(found) - found)
    tl.store(totals + p, tl.sum(found))
    if p == 0:
        tl.store(invalid, 0)


@kernel
def _decode(
    words,
    start,
    count,
    groups,
    totals,
    invalid,
    indices,
    nnz,
    size,
    low: tl.constexpr,
    step: tl.constexpr,
    most: tl.constexpr,
    wide: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    await_others(waiting, admitting=True)
    p = tl.program_id(0)
    start = p.to(tl.int64 if wide else tl.int32) * 0 + start
    program = tl.arange(0, most)
    before = tl.load(totals + program, mask=program < p // GROUPS, other=0)
    before = tl.sum(before) + tl.load(groups + p)
    w = (start >> 5) + p * GROUP + tl.arange(0, GROUP)
    word = _ones(words, w, start, count)
    population = _population(word)
    entry = before + tl.cumsum(population) - population
    bit = tl.arange(0, 32)
    set_ = ((word[:, None] >> bit[None, :]) & 1) > 0
    below = (tl.full([32], 1, tl.int32) << bit) - 1
    entry = entry[:, None] + _population(word[:, None] & below[None, :])
    inside = set_ & (entry < nnz)
    high = w[:, None] * 32 + bit[None, :] - start - step * entry
    index = high << low
    if low > 0:
        index |= unpacked(words, entry.to(start.dtype), inside, low).to(start.dtype)
    tl.store(indices + entry, index.to(indices.dtype.element_ty), mask=inside)
    wrong = tl.sum((set_ & ((entry >= nnz) | (index >= size))).to(tl.int32)) > 0
    if p == tl.num_programs(0) - 1:
        wrong = wrong | (before + tl.sum(population) != nnz)
    tl.atomic_or(invalid, 1, mask=wrong, sem="relaxed")


@kernel
def check_order(indices, nnz, size, invalid) -> None:
    i = tl.program_id(0) * CHECKED + tl.arange(0, CHECKED)
    inside = i < nnz
    here = tl.load(indices + i, mask=inside, other=0)
    after = tl.load(indices + i + 1, mask=i + 1 < nnz, other=0)
    beyond = inside & ((here < 0) | (here >= size))
    falling = (i + 1 < nnz) & (after <= here)
    wrong = tl.sum((beyond | falling).to(tl.int32)) > 0
    tl.atomic_or(invalid, 1, mask=wrong, sem="relaxed")


def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    return _written(indices, size, low=0, step=0, nbits=size)


def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    nbits = len(indices) * (low + 1) + (size >> low)
    return _written(indices, size, low=low, step=1, nbits=nbits)


def decode_bitmap(
    section: Tensor, size: int, nnz: int, *, errors: Tensor | None = None
) -> Tensor:
    check_length(section, size)
    if nnz == 0:
        return reference.decode_bitmap.reference(section, size, nnz)
    # In a bitmap ones ascend by themselves.
    indices, invalid = read(section, size, nnz, low=0, step=0)
    if must_raise(invalid, errors):
        return reference.decode_bitmap.reference(section, size, nnz)
    return indices


def decode_elias_fano(
    section: Tensor, size: int, nnz: int, *, low: int, errors: Tensor | None = None
) -> Tensor:
    check_length(section, nnz * (low + 1) + (size >> low))
    if nnz == 0 or low > 32:
        return reference.decode_elias_fano.reference(section, size, nnz, low=low)
    indices, invalid = read(section, size, nnz, low=low, step=1)
    check_order[(cdiv(nnz, CHECKED.value),)](indices, nnz, size, invalid, **EXACT)
    if must_raise(invalid, errors):
        return reference.decode_elias_fano.reference(section, size, nnz, low=low)
    return indices


def read(
    section: Tensor, size: int, nnz: int, *, low: int, step: int
) -> tuple[Tensor, Tensor]:
    """The indices, and a word on the device that is 0 if they are in range."""
    words = as_words(section)
    device = section.device
    start = nnz * low
    programs = cdiv(len(words) - (start >> 5), GROUP.value)
    counters = cdiv(programs, GROUPS.value)
    room = counters * (GROUPS.value + 1) + 1
    scratch = torch.empty(room, dtype=torch.int32, device=device)
    groups, totals, invalid = torch.split(
        scratch, [counters * GROUPS.value, counters, 1]
    )
    indices = torch.empty(nnz, dtype=index_dtype(size), device=device)
    counted = (words, start, len(words), groups, totals, invalid)
    wide = too_wide(32 * len(words), size)
    _count[(counters,)](*counted, wide=wide, **following(device))
    most = 1 << (counters - 1).bit_length()
    form = {"low": low, "step": step, "most": most, "wide": wide}
    _decode[(programs,)](*counted, indices, nnz, size, **form, **following(device))
    return indices, invalid


def _written(indices: Tensor, size: int, *, low: int, step: int, nbits: int) -> Tensor:
    nnz, device = len(indices), indices.device
    words = torch.empty(2 * cdiv(nbits, 64), dtype=torch.int32, device=device)
    if len(words):
        programs = section_programs(nnz, low)
        given = flat(indices.contiguous()), words, len(words), nnz, size, programs[0]
        form = {"low": low, "step": step, "wide": too_wide(nbits, size)}
        _encode[(sum(programs),)](*given, **form, **WRITING, **following(device))
    return words.view(torch.uint8)[: cdiv(nbits, 8)]


def section_programs(nnz: int, low: int) -> tuple[int, int]:
    """How many programs write ones, and how many write low bits."""
    own = WRITING["ones"] - SHARING.value
    return max(cdiv(nnz, own), 1), cdiv(nnz * low >> 5, WRITING["lows"])


def too_wide(nbits: int, size: int) -> bool:
    """Whether bits, or indices, are too many to be numbered by 32 bits."""
    return max(nbits, size) >= LONGEST
