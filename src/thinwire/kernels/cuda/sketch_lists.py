"""The blocks that reach into each stretch of cells, as lists: part of `sketch`."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.kernels import random_words
from thinwire.kernels.cuda.launch import EXACT, cdiv, kernel
from thinwire.kernels.hashes import KEYS, Hashes, signed

# Numbers that change from step to step, or from vector to vector: a kernel is compiled
# for any of them. Nor may it know that `out` begins at a multiple of 16 bytes: a thread
# would write four neighbours at once, and read four, at any address, one by one.
counting: Any = triton.jit(
    do_not_specialize=["seed", "first", "blocks", "size", "columns", "stretches"],
    do_not_specialize_on_alignment=["out"],
)

STEP: Any = tl.constexpr(signed(random_words.STEP))
FIRST: Any = tl.constexpr(signed(random_words.FIRST))
SECOND: Any = tl.constexpr(signed(random_words.SECOND))
CELL: Any = tl.constexpr(2**31 - 1)

SPAN: Any = tl.constexpr(256)


@kernel
def _mixed(word) -> Any:
    """`random_words.mixed`: shifts bring in zeros."""
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * FIRST
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * SECOND
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@kernel
def row_key(seed, row) -> Any:
    return _mixed(seed.to(tl.int64) + row.to(tl.int64) * STEP)


@kernel
def drawn(key, number, columns) -> Any:
    """The cell in which a block begins, and whether its sign is a minus."""
    word = _mixed(key + (number.to(tl.int64) + 1) * STEP)
    return (((word >> 32) & 0xFFFFFFFF) * columns) >> 32, word & 1


@kernel
def sign(minus) -> Any:
    return 1.0 - 2.0 * minus.to(tl.float32)


@kernel
def _stretch(start, after, stretches, length: tl.constexpr) -> Any:
    """The stretch in which a block begins, or the one after it."""
    at = tl.minimum(start // length, stretches - 1) + after
    return tl.where(at == stretches, 0, at)


@counting
def _count(
    counts,
    slots,
    seed,
    first,
    blocks,
    columns,
    stretches,
    length: tl.constexpr,
    reaches: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    i = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = i < blocks
    start, _ = drawn(row_key(seed, row), first + i.to(tl.int64), columns)
    for after in tl.static_range(reaches):
        at = row.to(tl.int64) * stretches + _stretch(start, after, stretches, length)
        # The count of a list stands where the sum of all before it ends.
        slot = tl.atomic_add(counts + at + 1, 1, mask=inside, sem="relaxed")
        tl.store(slots + (row * reaches + after) * blocks + i, slot, mask=inside)


@counting
def _place(
    starts,
    slots,
    entries,
    seed,
    first,
    blocks,
    columns,
    stretches,
    length: tl.constexpr,
    reaches: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    i = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = i < blocks
    start, minus = drawn(row_key(seed, row), first + i.to(tl.int64), columns)
    for after in tl.static_range(reaches):
        at = row.to(tl.int64) * stretches + _stretch(start, after, stretches, length)
        slot = tl.load(slots + (row * reaches + after) * blocks + i, mask=inside)
        to = tl.load(starts + at, mask=inside, other=0) + slot
        # Entries are in the order of their blocks, the upper 31 bits.
        entry = (i.to(tl.int64) << 33) | (start << 2) | (after << 1) | minus
        tl.store(entries + to, entry, mask=inside)


@counting
def _order(
    starts,
    entries,
    ordered,
    blocks,
    stretches,
    length: tl.constexpr,
    reaches: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    i = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = i < blocks * reaches
    entry = tl.load(entries + row * blocks * reaches + i, mask=inside, other=0)
    start, after = (entry >> 2) & CELL, (entry >> 1) & 1
    at = row.to(tl.int64) * stretches + _stretch(start, after, stretches, length)
    low = tl.load(starts + at, mask=inside, other=0)
    high = tl.load(starts + at + 1, mask=inside, other=0)
    to = low
    for e in range(tl.max(high - low)):
        there = low + e < high
        other = tl.load(entries + low + e, mask=there, other=0)
        to += (there & (other < entry)).to(tl.int32)
    tl.store(ordered + to, entry, mask=inside)


def block_lists(
    hashes: Hashes,
    numbers: tuple[int, int],
    shape: tuple[int, int],
    form: tuple[int, int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Where the list of each stretch starts, row after row; and all the lists."""
    count, stretches, reaches = numbers[1], shape[1], form[1]
    listed = reaches * count
    counts = torch.zeros(hashes.rows * stretches + 1, dtype=torch.int32, device=device)
    slots = torch.empty(hashes.rows * listed, dtype=torch.int32, device=device)
    entries = torch.empty(len(slots), dtype=torch.int64, device=device)
    ordered = torch.empty_like(entries)
    grid = (cdiv(count, SPAN.value), hashes.rows)
    given = (seed_of(hashes), *numbers, *shape, *form)
    _count[grid](counts, slots, *given, **EXACT)
    starts = torch.cumsum(counts, 0, dtype=torch.int32)
    _place[grid](starts, slots, entries, *given, **EXACT)
    grid = (cdiv(listed, SPAN.value), hashes.rows)
    _order[grid](starts, entries, ordered, count, stretches, *form, **EXACT)
    return starts, ordered


def seed_of(hashes: Hashes) -> int:
    """The word that the keys of the rows are mixed from, STEP apart."""
    return signed(hashes.seed + random_words.STEP * (1 + KEYS * hashes.epoch))
