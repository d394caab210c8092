# mypy: disallow-untyped-decorators=False
# ruff: noqa: D103, because the front door documents each function.
"""Bitmaps and Elias-Fano lists, one entry at a time: 2 ns to write, 2 ns to read.

Both are a vector of bits with a one per entry. In a bitmap, entry i has its one at its
index; in an Elias-Fano list at the index without the low bits, plus i.

This file is complete in itself: numba's disk cache notices a change of the file that
defines a kernel, not of the files it takes helpers from.
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import extending, types
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.compiled import kernel
from thinwire.kernels.cpu_bits import as_section, as_words, pack_into, unpack_into
from thinwire.kernels.sections import (
    check_ascending,
    check_count,
    check_length,
    check_order,
    index_dtype,
)

intrinsic: Any = extending.intrinsic

Words = NDArray[np.uint64]
Indices = NDArray[Any]


def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    words = np.zeros(-(-size // 64), np.uint64)
    check_ascending(_set_ones(indices.contiguous().numpy(), 0, 0, 0, words))
    return as_section(words, size)


def decode_bitmap(section: Tensor, size: int, nnz: int) -> Tensor:
    check_length(section, size)
    words = as_words(section, -(-size // 64))
    check_count(_count_ones(words, 0), nnz)
    indices = torch.zeros(nnz, dtype=index_dtype(size))
    check_order(_read_ones(words, 0, 0, 0, size, indices.numpy()), size)
    return indices


def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    nnz = len(indices)
    bits = nnz * (low + 1) + (size >> low)
    words = np.zeros(-(-bits // 64), np.uint64)
    listed = indices.contiguous().numpy()
    pack_into(listed, low, words)
    check_ascending(_set_ones(listed, low, 1, nnz * low, words))
    return as_section(words, bits)


def decode_elias_fano(section: Tensor, size: int, nnz: int, *, low: int) -> Tensor:
    bits = nnz * (low + 1) + (size >> low)
    check_length(section, bits)
    words = as_words(section, -(-bits // 64))
    check_count(_count_ones(words, nnz * low), nnz)
    indices = torch.empty(nnz, dtype=index_dtype(size))
    unpack_into(words, low, indices.numpy())
    ascending = _read_ones(words, low, 1, nnz * low, size, indices.numpy())
    check_order(ascending, size)
    return indices


@intrinsic
def _trailing_zeros(typing: Any, word: Any) -> Any:
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _ones(typing: Any, word: Any) -> Any:
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@kernel
def _set_ones(indices: Indices, low: int, step: int, start: int, words: Words) -> bool:
    """Set bit `start + (index >> low) + step * i` for each entry.

    Ends with False where a bit would lie outside of `words`, which are not touched
    there, or before another one's word.
    """
    if len(indices) == 0:
        return True
    word = np.uint64(0)
    at = start >> 6
    for i in range(len(indices)):
        position: Any = start + (np.int64(indices[i]) >> low) + step * i
        w = position >> 6
        if w != at:
            if w < at or w >= len(words):
                return False
            words[at] |= word
            word = np.uint64(0)
            at = w
        word |= np.uint64(1) << np.uint64(position & 63)
    words[at] |= word
    return True


@kernel
def _count_ones(words: Words, start: int) -> int:
    """How many bits are set from bit `start` on."""
    first = start >> 6
    if first >= len(words):
        return 0
    total: Any = _ones(words[first] >> np.uint64(start & 63))
    for w in range(first + 1, len(words)):
        total += _ones(words[w])
    return total  # type: ignore[no-any-return]


@kernel
def _read_ones(
    words: Words, low: int, step: int, start: int, size: int, indices: Indices
) -> bool:
    """The inverse of `_set_ones`, to be added to the low bits in `indices`.

    From bit `start` on there must be exactly `len(indices)` ones. Answers whether the
    indices ascend and are below `size`.
    """
    if len(indices) == 0:
        return True
    first = start >> 6
    i = 0
    high = 0
    for w in range(first, len(words)):
        word = words[w]
        if w == first:
            word &= ~np.uint64(0) << np.uint64(start & 63)
        base = (w << 6) - start
        while word != 0:
            high = (base + _trailing_zeros(word) - step * i) << low
            indices[i] |= high
            word &= word - np.uint64(1)
            i += 1
    # High bits never fall, so if the last one's are in range, only the low bits of
    # its equals can carry an index out of range; it then falls or is negative.
    falls = high >= size or indices[-1] >= size or indices[0] < 0
    for i in range(1, len(indices)):
        falls |= indices[i] <= indices[i - 1]
    return not falls
