"""Sketched rows, peeled in time linear in their number.

About 40 ns a row to insert and 130 ns to peel (one element, a table of three rows), or
480 ns to peel if the table does not fit the cache: benchmarks/peel.py.

Each cell has two numbers: how many rows are in it, and the exclusive or of their
places, which is the place of the row once only one is left. Integer addition wraps
around, so the order of peeling changes no result.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Indices, Words
from thinwire.kernels.cpu.bits import all_zero_from, as_words
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.cpu.elias_fano import count_set_bits, read_set_bits
from thinwire.kernels.cpu.random_words import random_word
from thinwire.kernels.sections import check_length, check_spare, index_dtype

Cells = NDArray[Any]


def set_bits(section: Tensor, size: int) -> Tensor:
    check_length(section, size)
    words = as_words(section, -(-size // 64))
    check_spare(all_zero_from(words, size))
    return ones_of(words, size)


def ones_of(words: Words, size: int) -> Tensor:
    """The indices of the bits that are set; none is set from `size` on."""
    indices = torch.empty(count_set_bits(words, 0), dtype=index_dtype(size))
    read_set_bits(words, size, indices.numpy())
    return indices


def sketch_rows(ids: Tensor, values: Tensor, keys: Tensor, columns: int) -> Tensor:
    cells = torch.zeros(len(keys), columns, values.shape[1], dtype=values.dtype)
    rows = values.contiguous().numpy()
    _insert(ids.contiguous().numpy(), rows, _as_words(keys), columns, _flat(cells))
    return cells


def peel_rows_(cells: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.zeros(len(ids), cells.shape[2], dtype=cells.dtype)
    stuck = torch.ones(len(ids), dtype=torch.bool)
    listed = ids.contiguous().numpy()
    peeled = (values.numpy(), stuck.numpy())
    _peel(_flat(cells), listed, _as_words(keys), cells.shape[1], *peeled)
    return values, stuck.nonzero().view(-1)


def estimate_rows(cells: Tensor, ids: Tensor, keys: Tensor, how: str) -> Tensor:
    values = torch.empty(len(ids), cells.shape[2])
    listed = ids.contiguous().numpy()
    given = (_flat(cells), listed, _as_words(keys), cells.shape[1])
    _estimate(*given, how == "median", values.numpy())
    return values


def _flat(cells: Tensor) -> Cells:
    flat: Cells = cells.view(-1, cells.shape[2]).numpy()
    return flat


def _as_words(keys: Tensor) -> Words:
    unsigned: Words = keys.contiguous().numpy().view(np.uint64)
    return unsigned


@part
def _cell_of(hashed: Any, row: Any, columns: Any) -> Any:
    """The number of a cell in the flattened table."""
    column = ((hashed >> np.uint64(32)) * np.uint64(columns)) >> np.uint64(32)
    return np.int64(column) + row * columns


@kernel
def _insert(
    ids: Indices, values: Cells, keys: Words, columns: int, cells: Cells
) -> None:
    width = values.shape[1]
    for x in range(len(ids)):
        for i in range(len(keys)):
            h = random_word(keys[i], ids[x])
            p = _cell_of(h, i, columns)
            if h & np.uint64(1):
                for lane in range(width):
                    cells[p, lane] -= values[x, lane]
            else:
                for lane in range(width):
                    cells[p, lane] += values[x, lane]


@kernel
@allocating
def _peel(
    cells: Cells,
    ids: Indices,
    keys: Words,
    columns: int,
    values: Cells,
    stuck: NDArray[np.bool_],
) -> None:
    width = values.shape[1]
    # The number of rows and the exclusive or of their places, in one cache line.
    members = np.zeros((len(cells), 2), np.int32)
    for x in range(len(ids)):
        for i in range(len(keys)):
            p = _cell_of(random_word(keys[i], ids[x]), i, columns)
            members[p, 0] += 1
            members[p, 1] ^= x
    # A queue of cells with one row. A cell enters it once at most. A stack was a tenth
    # slower, because it reads what was just written.
    alone = np.empty(len(cells), np.int64)
    end = 0
    for p in range(len(cells)):
        if members[p, 0] == 1:
            alone[end] = p
            end += 1
    start = 0
    while start < end:
        p = alone[start]
        start += 1
        if members[p, 0] == 0:
            continue  # the row was already read from another cell
        x = members[p, 1]
        negative = random_word(keys[p // columns], ids[x]) & np.uint64(1)
        for lane in range(width):
            values[x, lane] = -cells[p, lane] if negative else cells[p, lane]
        stuck[x] = False
        for i in range(len(keys)):
            h = random_word(keys[i], ids[x])
            p = _cell_of(h, i, columns)
            if h & np.uint64(1):
                for lane in range(width):
                    cells[p, lane] += values[x, lane]
            else:
                for lane in range(width):
                    cells[p, lane] -= values[x, lane]
            members[p, 0] -= 1
            members[p, 1] ^= x
            if members[p, 0] == 1:
                alone[end] = p
                end += 1


@kernel
@allocating
def _estimate(
    cells: Cells,
    ids: Indices,
    keys: Words,
    columns: int,
    median: bool,  # noqa: FBT001
    values: Cells,
) -> None:
    rows = len(keys)
    width = values.shape[1]
    estimates = np.empty((rows, width), np.float32)
    for x in range(len(ids)):
        for i in range(rows):
            h = random_word(keys[i], ids[x])
            p = _cell_of(h, i, columns)
            for lane in range(width):
                value = cells[p, lane]
                estimates[i, lane] = -value if h & np.uint64(1) else value
        for lane in range(width):
            if median:
                for i in range(1, rows):
                    value = estimates[i, lane]
                    j = i
                    while j > 0 and estimates[j - 1, lane] > value:
                        estimates[j, lane] = estimates[j - 1, lane]
                        j -= 1
                    estimates[j, lane] = value
                values[x, lane] = estimates[rows // 2, lane]
            else:
                total = estimates[0, lane]
                for i in range(1, rows):
                    total += estimates[i, lane]
                values[x, lane] = total / np.float32(rows)
