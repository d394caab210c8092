"""Sketched rows, one at a time: peeling in a time that is linear in the rows.

Some 40 ns a row to insert and 130 to peel (of one element, in a table of three rows),
480 to peel where the table does not fit the cache: benchmarks/peel.py.

Every cell knows how many of the rows have it and the exclusive or of their places, so a
cell with one row says which it is. Order does not matter: whole numbers wrap around and
come out the same, and the rows that get stuck are the same in any order.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.bits import all_zero_from, as_words
from thinwire.kernels.cpu.compiled import kernel, part, refcounted
from thinwire.kernels.cpu.intrinsics import count_ones, trailing_zeros
from thinwire.kernels.sections import check_length, check_spare, index_dtype

Words = NDArray[np.uint64]
Cells = NDArray[Any]
Indices = NDArray[Any]
Keys = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def set_bits(section: Tensor, size: int) -> Tensor:
    check_length(section, size)
    words = as_words(section, -(-size // 64))
    check_spare(all_zero_from(words, size))
    return ones_of(words, size)


def ones_of(words: Words, size: int) -> Tensor:
    """Which of the first `size` bits are set, where no others are."""
    indices = torch.empty(_count_ones(words), dtype=index_dtype(size))
    _read_ones(words, indices.numpy())
    return indices


def sketch_rows(ids: Tensor, values: Tensor, keys: Tensor, columns: int) -> Tensor:
    cells = torch.zeros(len(keys), columns, values.shape[1], dtype=values.dtype)
    rows = values.contiguous().numpy()
    _insert(ids.contiguous().numpy(), rows, _unsigned(keys), columns, _flat(cells))
    return cells


def peel_rows_(cells: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.zeros(len(ids), cells.shape[2], dtype=cells.dtype)
    stuck = torch.ones(len(ids), dtype=torch.bool)
    listed = ids.contiguous().numpy()
    peeled = (values.numpy(), stuck.numpy())
    _peel(_flat(cells), listed, _unsigned(keys), cells.shape[1], *peeled)
    return values, stuck.nonzero().view(-1)


def estimate_rows(cells: Tensor, ids: Tensor, keys: Tensor, how: str) -> Tensor:
    values = torch.empty(len(ids), cells.shape[2])
    listed = ids.contiguous().numpy()
    given = (_flat(cells), listed, _unsigned(keys), cells.shape[1])
    _estimate(*given, how == "median", values.numpy())
    return values


def _flat(cells: Tensor) -> Cells:
    flat: Cells = cells.view(-1, cells.shape[2]).numpy()
    return flat


def _unsigned(keys: Tensor) -> Keys:
    unsigned: Keys = keys.contiguous().numpy().view(np.uint64)
    return unsigned


@kernel
def _count_ones(words: Words) -> int:
    total: Any = 0
    for w in range(len(words)):
        total += count_ones(words[w])
    return total  # type: ignore[no-any-return]


@kernel
def _read_ones(words: Words, indices: Indices) -> None:
    i = 0
    for w in range(len(words)):
        word = words[w]
        while word != 0:
            indices[i] = (w << 6) + trailing_zeros(word)
            word &= word - np.uint64(1)
            i += 1


@part
def _hashed(key: Any, number: Any) -> Any:
    z = key + np.uint64(_GOLDEN) * np.uint64(np.int64(number) + 1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


@part
def _place(hashed: Any, row: Any, columns: Any) -> Any:
    """The cell of the table, counted row by row."""
    column = ((hashed >> np.uint64(32)) * np.uint64(columns)) >> np.uint64(32)
    return np.int64(column) + row * columns


@kernel
def _insert(
    ids: Indices, values: Cells, keys: Keys, columns: int, cells: Cells
) -> None:
    width = values.shape[1]
    for x in range(len(ids)):
        for i in range(len(keys)):
            h = _hashed(keys[i], ids[x])
            p = _place(h, i, columns)
            if h & np.uint64(1):
                for lane in range(width):
                    cells[p, lane] -= values[x, lane]
            else:
                for lane in range(width):
                    cells[p, lane] += values[x, lane]


@kernel
@refcounted
def _peel(
    cells: Cells,
    ids: Indices,
    keys: Keys,
    columns: int,
    values: Cells,
    stuck: NDArray[np.bool_],
) -> None:
    width = values.shape[1]
    # How many rows have the cell, and the exclusive or of their places, side by side:
    # one cache line for both.
    owners = np.zeros((len(cells), 2), np.int32)
    for x in range(len(ids)):
        for i in range(len(keys)):
            p = _place(_hashed(keys[i], ids[x]), i, columns)
            owners[p, 0] += 1
            owners[p, 1] ^= x
    # A cell comes to have one row once at most, so the queue holds all that ever do.
    # Of a stack, one would read what was just written and wait for it: measured as a
    # tenth slower.
    alone = np.empty(len(cells), np.int64)
    end = 0
    for p in range(len(cells)):
        if owners[p, 0] == 1:
            alone[end] = p
            end += 1
    start = 0
    while start < end:
        p = alone[start]
        start += 1
        if owners[p, 0] == 0:
            continue  # its row was read elsewhere
        x = owners[p, 1]
        negative = _hashed(keys[p // columns], ids[x]) & np.uint64(1)
        for lane in range(width):
            values[x, lane] = -cells[p, lane] if negative else cells[p, lane]
        stuck[x] = False
        for i in range(len(keys)):
            h = _hashed(keys[i], ids[x])
            p = _place(h, i, columns)
            if h & np.uint64(1):
                for lane in range(width):
                    cells[p, lane] += values[x, lane]
            else:
                for lane in range(width):
                    cells[p, lane] -= values[x, lane]
            owners[p, 0] -= 1
            owners[p, 1] ^= x
            if owners[p, 0] == 1:
                alone[end] = p
                end += 1


@kernel
@refcounted
def _estimate(
    cells: Cells,
    ids: Indices,
    keys: Keys,
    columns: int,
    median: bool,  # noqa: FBT001
    values: Cells,
) -> None:
    rows = len(keys)
    width = values.shape[1]
    said = np.empty((rows, width), np.float32)
    for x in range(len(ids)):
        for i in range(rows):
            h = _hashed(keys[i], ids[x])
            p = _place(h, i, columns)
            for lane in range(width):
                value = cells[p, lane]
                said[i, lane] = -value if h & np.uint64(1) else value
        for lane in range(width):
            if median:
                for i in range(1, rows):
                    value = said[i, lane]
                    j = i
                    while j > 0 and said[j - 1, lane] > value:
                        said[j, lane] = said[j - 1, lane]
                        j -= 1
                    said[j, lane] = value
                values[x, lane] = said[rows // 2, lane]
            else:
                total = said[0, lane]
                for i in range(1, rows):
                    total += said[i, lane]
                values[x, lane] = total / np.float32(rows)
