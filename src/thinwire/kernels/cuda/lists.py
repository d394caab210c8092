"""Sparse lists: merged and joined by rank, without a sort.

An entry's place in a merged list is its number plus that of the entries before it in
the other list, found by binary search. Neighbours take the same path, so it is cached.
An index that both lists have leaves a hole after its sum, so that every place is known
beforehand. Only a list without holes has to wait for its length.
Where a merged list is merged again, its holes keep their index, so that it still
ascends: of equal neighbours the first has the value, and the others have zero.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.blocks import Block, chunk_of
from thinwire.kernels.cuda.elias_fano import CHECKED, check_order
from thinwire.kernels.cuda.launch import EXACT, cdiv, flat, kernel
from thinwire.kernels.cuda.partition import shared_words, split_list
from thinwire.kernels.deferred_errors import must_raise
from thinwire.kernels.reference import lists as reference
from thinwire.kernels.reference.lists import join_contiguous, split_off_all_or_none
from thinwire.kernels.sections import Sparse, index_dtype
from thinwire.kernels.trees import added_up

ENTRIES: Any = tl.constexpr(512)


@kernel
def _rank(items, wanted, low, high, turns) -> Any:
    """How far from the beginning the first item is that is not below `wanted`."""
    for _ in range(turns):
        open_ = low < high
        middle = (low + high) >> 1
        below = tl.load(items + middle, mask=open_, other=0) < wanted
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & ~below, middle, high)
    return low


@kernel
def _find_infinite(values, nnz, invalid) -> None:
    i = tl.program_id(0).to(tl.int64) * CHECKED + tl.arange(0, CHECKED)
    word = tl.load(values + i, mask=i < nnz, other=0)
    wrong = tl.sum(((word & 0x7FFFFFFF) >= 0x7F800000).to(tl.int32)) > 0
    tl.atomic_or(invalid, 1, mask=wrong, sem="relaxed")


@kernel
def _merge(
    left,
    left_values,
    lefts,
    right,
    right_values,
    rights,
    indices,
    values,
    turns,
    left_programs,
    shared,
    words,
    again: tl.constexpr,
) -> None:
    p = tl.program_id(0)
    # Clear the memory that the next launch shares.
    at = p * ENTRIES + tl.arange(0, ENTRIES)
    tl.store(shared + at, tl.zeros([ENTRIES], tl.int32), mask=at < words)
    zero = tl.zeros([ENTRIES], tl.int32)
    if p < left_programs:
        i = p * ENTRIES + tl.arange(0, ENTRIES)
        inside = i < lefts
        index = tl.load(left + i, mask=inside, other=0)
        rank = _rank(right, index, zero, zero + rights, turns)
        value = tl.load(left_values + i, mask=inside, other=0.0)
        there = inside & (rank < rights)
        twin = there & (tl.load(right + rank, mask=there, other=0) == index)
        if again:
            before = tl.load(left + i - 1, mask=inside & (i > 0), other=-1)
            twin = twin & (before != index)
        more = tl.load(right_values + rank, mask=twin, other=0.0)
        tl.store(indices + i + rank, index, mask=inside)
        tl.store(values + i + rank, tl.where(twin, value + more, value), mask=inside)
    else:
        i = (p - left_programs) * ENTRIES + tl.arange(0, ENTRIES)
        inside = i < rights
        index = tl.load(right + i, mask=inside, other=0)
        value = tl.load(right_values + i, mask=inside, other=0.0)
        if again:
            # Behind all that the left has of this index.
            rank = _rank(left, index + 1, zero, zero + lefts, turns)
            there = inside & (rank > 0)
            twin = there & (tl.load(left + rank - 1, mask=there, other=0) == index)
            tl.store(indices + i + rank, index, mask=inside)
            to = i + rank
        else:
            rank = _rank(left, index, zero, zero + lefts, turns)
            there = inside & (rank < lefts)
            twin = there & (tl.load(left + rank, mask=there, other=0) == index)
            to = i + rank + twin.to(tl.int32)
            tl.store(indices + to, tl.where(twin, -1, index), mask=inside)
        tl.store(values + to, tl.where(twin, 0.0, value), mask=inside)


@kernel
def _interleave(
    local,
    values,
    ends,
    nnz,
    indices,
    joined,
    turns,
    chunk: tl.constexpr,
    blocks: tl.constexpr,
) -> None:
    i = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = i < nnz
    j = tl.load(local + i, mask=inside, other=0)
    block = tl.zeros([ENTRIES], tl.int32)
    for b in range(1, blocks):
        block += (i >= tl.load(ends + b)).to(tl.int32)
    row = j // chunk
    at = i - tl.load(ends + block, mask=inside, other=0)
    for b in range(blocks):
        # Before this entry come all chunks of its row that belong to earlier blocks.
        limit = (row + (block > b).to(tl.int32)) * chunk
        low = tl.zeros([ENTRIES], tl.int32) + tl.load(ends + b)
        high = tl.zeros([ENTRIES], tl.int32) + tl.load(ends + b + 1)
        rank = _rank(local, limit, low, high, turns) - low
        at += tl.where(block == b, 0, rank)
    shift = (block + row.to(tl.int64) * (blocks - 1)) * chunk
    place = (j + shift).to(indices.dtype.element_ty)
    tl.store(indices + at, place, mask=inside)
    tl.store(joined + at, tl.load(values + i, mask=inside), mask=inside)


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    room = shared_words(left.device)
    indices, values = _merged((left, left_values), (right, right_values), room)
    places = (indices >= 0).nonzero().view(-1)
    return indices[places], values[places]


def merge_all(lists: Sequence[Sparse]) -> Sparse:
    """Waits for one length, that of the sum."""
    if len(lists) == 1:
        return lists[0]
    room = shared_words(lists[0][1].device)
    merged = added_up(lists, lambda a, b: _merged(a, b, room, again=True))
    first = torch.ones_like(merged[0], dtype=torch.bool)
    torch.ne(merged[0][1:], merged[0][:-1], out=first[1:])
    places = first.nonzero().view(-1)
    return merged[0][places], merged[1][places]


def merge_split(left: Sparse, right: Sparse, k: int) -> tuple[Sparse, Sparse]:
    nnz = len(left[0]) + len(right[0])
    shared = shared_words(left[0].device)
    merged = _merged(left, right, shared)
    if k in (0, nnz):
        return reference.split.reference(*merged, k)
    return split_list(*merged, k, shared=shared, holes=True)


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    if not 0 < k < len(values):
        return split_off_all_or_none(indices, values, k)
    return split_list(flat(indices), flat(values), k)


def _merged(
    left: Sparse, right: Sparse, shared: Tensor, *, again: bool = False
) -> Sparse:
    """The sum with a hole, an index of -1, for every index that both lists have.

    Or, for lists that have holes and will be merged `again`, the index once more.
    """
    lefts, rights = len(left[0]), len(right[0])
    indices = left[0].new_empty(lefts + rights)
    values = left[1].new_empty(lefts + rights)
    programs = cdiv(lefts, ENTRIES.value)
    both = programs + cdiv(rights, ENTRIES.value)
    if both:
        grid = (max(both, cdiv(len(shared), ENTRIES.value)),)
        one = (*map(flat, left), lefts)
        other = (*map(flat, right), rights)
        turns = (max(lefts, rights).bit_length(), programs)
        given = (*one, *other, indices, values, *turns, shared, len(shared))
        _merge[grid](*given, again=again, **EXACT)
    return indices, values


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    chunk = chunk_of(tuple(blocks))
    if chunk < 0:
        return reference.join.reference(lists, blocks)
    if chunk == 0:
        return join_contiguous(lists, blocks)
    dtype = index_dtype(sum(block.length for block in blocks))
    local, values = (torch.cat(parts) for parts in zip(*lists, strict=True))
    nnz = len(local)
    indices = torch.empty(nnz, dtype=dtype, device=local.device)
    joined = torch.empty_like(values)
    ends = _ends(tuple(len(v) for _, v in lists), local.device)
    if nnz:
        turns = max(len(v) for _, v in lists).bit_length()
        _interleave[(cdiv(nnz, ENTRIES.value),)](
            local,
            values,
            ends,
            nnz,
            indices,
            joined,
            turns,
            chunk=chunk,
            blocks=len(blocks),
            **EXACT,
        )
    return indices, joined


def strictly_increasing(
    indices: Tensor, size: int, *, errors: Tensor | None = None
) -> bool:
    nnz = len(indices)
    if nnz == 0:
        return True
    invalid = torch.zeros(1, dtype=torch.int32, device=indices.device)
    given = flat(indices.contiguous())
    check_order[(cdiv(nnz, CHECKED.value),)](given, nnz, size, invalid, **EXACT)
    return not must_raise(invalid, errors)


def all_finite(values: Tensor, *, errors: Tensor | None = None) -> bool:
    given = flat(values.contiguous()).view(torch.int32)
    # The flag itself, so that this is one launch where errors are deferred.
    invalid = given.new_zeros(1) if errors is None else errors
    if len(given):
        _find_infinite[(cdiv(len(given), CHECKED.value),)](given, len(given), invalid)
    return errors is not None or not must_raise(invalid, None)


@lru_cache(maxsize=1024)
def _ends(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    ends = [0, *accumulate(lengths)]
    return torch.tensor(ends, dtype=torch.int32, device=device)
