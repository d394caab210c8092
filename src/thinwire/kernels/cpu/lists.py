"""Sparse lists: merge, split and join them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.blocks import Block, chunk_of
from thinwire.kernels.cpu import select
from thinwire.kernels.cpu.arrays import Bits, FloatBits, Floats, Indices, array_of
from thinwire.kernels.cpu.compiled import kernel
from thinwire.kernels.reference import lists as reference
from thinwire.kernels.reference.lists import join_contiguous, split_off_all_or_none
from thinwire.kernels.sections import Sparse, index_dtype


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    nnz = left.numel() + right.numel()
    indices, values = torch.empty(nnz, dtype=left.dtype), torch.empty(nnz)
    lists = (left, left_values, right, right_values, indices, values)
    nnz = _merge_add(*map(array_of, lists))
    return indices[:nnz], values[:nnz]


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    if not 0 < k < len(values):
        return split_off_all_or_none(indices, values, k)
    kept = torch.empty(k, dtype=indices.dtype), torch.empty(k)
    rest = values.numel() - k
    dropped = torch.empty(rest, dtype=indices.dtype), torch.empty(rest)
    lists = (tuple(map(array_of, e)) for e in ((indices, values), kept, dropped))
    select.partition(select.scratch_counts(), k, *lists)
    return kept, dropped


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    chunk = chunk_of(tuple(blocks))
    if chunk < 0:
        return reference.join.reference(lists, blocks)
    if chunk == 0:
        return join_contiguous(lists, blocks)
    dtype = index_dtype(sum(block.length for block in blocks))
    local, values = (torch.cat(parts) for parts in zip(*lists, strict=True))
    cuts = [0, *accumulate(v.numel() for _, v in lists)]
    at, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    joined = torch.empty(local.numel(), dtype=dtype), torch.empty_like(values)
    given = (array_of(local), array_of(values), at, ends, chunk)
    _interleave(*given, *map(array_of, joined))
    return joined


def look_up(indices: Tensor, values: Tensor, wanted: Tensor, others: Tensor) -> Tensor:
    found = torch.empty(wanted.numel())
    _look_up(*map(array_of, (indices, values, wanted, others, found)))
    return found


def strictly_increasing(
    indices: Tensor, size: int, *, errors: Tensor | None = None
) -> bool:
    if indices.numel() == 0:
        return True
    return bool(_strictly_increasing(array_of(indices), size))


def all_finite(values: Tensor, *, errors: Tensor | None = None) -> bool:
    return bool(_all_finite(array_of(values).view(np.int32)))


@kernel
def _merge_add(
    left: Indices,
    left_values: Floats,
    right: Indices,
    right_values: Floats,
    indices: Indices,
    values: Floats,
) -> int:
    """The sum of two ascending lists; returns its length."""
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


@kernel
def _interleave(
    local: Indices,
    values: Floats,
    at: Bits,
    ends: Bits,
    chunk: int,
    indices: Indices,
    joined: Floats,
) -> None:
    """One ascending list from those of interleaved blocks.

    The entries of block b are from `at[b]` to `ends[b]`; `at` changes to `ends`.
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
def _look_up(
    indices: Indices, values: Floats, wanted: Indices, others: Floats, found: Floats
) -> None:
    """Walk both lists once; a search for each index would take ten times as long."""
    i = 0
    n = 0
    while n < len(wanted) and i < len(indices):
        a = indices[i]
        b = wanted[n]
        # Written again with the next index if this one is still to come.
        found[n] = values[i] if a == b else others[n]
        i += a <= b
        n += b <= a
    while n < len(wanted):
        found[n] = others[n]
        n += 1


@kernel
def _strictly_increasing(indices: Indices, size: int) -> bool:
    """Whether every index is larger than the one before, from 0 to below `size`."""
    falls: Any = np.int64(indices[0] < 0) + np.int64(indices[-1] >= size)
    for i in range(1, len(indices)):
        falls += indices[i] <= indices[i - 1]
    return bool(falls == 0)


@kernel
def _all_finite(values: FloatBits) -> bool:
    largest = np.int32(0)
    for i in range(len(values)):
        largest = max(largest, np.int32(values[i] & 0x7FFFFFFF))
    return bool(largest < 0x7F800000)
