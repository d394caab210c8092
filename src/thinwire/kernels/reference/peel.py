"""Sketched rows: read bitmaps, fill tables, peel and estimate them.

A row is a short vector with a number. In a table of shape (rows of the table, columns,
width) it has one cell in each row of the table, in the column that its number hashes
to. It is added to some of them and subtracted from others, by the hash. The hash
of number x under `keys[i]` is SplitMix64 of x + 1 begun at the key: the upper half,
scaled to the columns, is the column; the lowest bit decides whether to subtract.
"""

from typing import Literal

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.bits import to_bits
from thinwire.kernels.reference.random_words import random_words, shifted
from thinwire.kernels.sections import check_length, check_spare, index_dtype

Estimate = Literal["median", "mean"]


@primitive
def set_bits(section: Tensor, size: int) -> Tensor:
    """Which bits of a bitmap are set; `ValueError` from one that is not of `size`.

    >>> import torch
    >>> set_bits(torch.tensor([33, 67], dtype=torch.uint8), 16).tolist()
    [0, 5, 8, 9, 14]
    """
    check_length(section, size)
    ones = to_bits(section).nonzero().view(-1)
    check_spare(len(ones) == 0 or int(ones[-1]) < size)
    return ones.to(index_dtype(size))


@primitive
def sketch_rows(ids: Tensor, values: Tensor, keys: Tensor, columns: int) -> Tensor:
    """A table filled with these rows, in the type of their values, int32 or float32.

    int32 wraps around. Rows are added in the order given.

    >>> import torch
    >>> from thinwire.kernels import hash_keys
    >>> ids, values = torch.tensor([4, 7]), torch.tensor([[1.0], [3.0]])
    >>> sketch_rows(ids, values, hash_keys(7, 0, 1), columns=3).tolist()
    [[[0.0], [1.0], [3.0]]]
    """
    shape = (len(keys), columns, values.shape[1])
    cells = torch.zeros(shape, dtype=values.dtype, device=values.device)
    for row, key in zip(cells, keys.tolist(), strict=True):
        column, subtract = places(ids, key, columns)
        row.index_add_(0, column, torch.where(subtract[:, None], -values, values))
    return cells


@primitive
def peel_rows_(cells: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The exact rows of an int32 table, and the positions of those that are stuck.

    `ids` are all rows that may be in the table; one that is not comes out as zeros. A
    row that is alone in a cell is read there and taken out of its other cells, until no
    row is alone. `cells` are left with those that are stuck, whose values are zeros.

    >>> import torch
    >>> from thinwire.kernels import hash_keys
    >>> ids, values = torch.tensor([1, 5, 8]), torch.tensor([[3], [-2], [7]]).int()
    >>> keys = hash_keys(seed=0, epoch=0, rows=3)
    >>> peeled, stuck = peel_rows_(sketch_rows(ids, values, keys, columns=4), ids, keys)
    >>> peeled.tolist(), stuck.tolist()
    ([[3], [-2], [7]], [])
    """
    rows, columns, width = cells.shape
    hashed = [places(ids, key, columns) for key in keys.tolist()]
    where = torch.stack([i * columns + column for i, (column, _) in enumerate(hashed)])
    subtract = torch.stack([subtract for _, subtract in hashed])
    flat = cells.view(rows * columns, width)
    counts = torch.bincount(where.view(-1), minlength=rows * columns)
    values = torch.zeros(len(ids), width, dtype=cells.dtype, device=cells.device)
    alive = torch.ones(len(ids), dtype=torch.bool, device=cells.device)
    while True:
        alone = (counts[where] == 1) & alive
        found = alone.any(0).nonzero().view(-1)
        if len(found) == 0:
            return values, alive.nonzero().view(-1)
        first = alone[:, found].int().argmax(0)
        at, negative = where[first, found], subtract[first, found]
        value = torch.where(negative[:, None], -flat[at], flat[at])
        values[found] = value
        for row in range(rows):
            signed = torch.where(subtract[row, found][:, None], value, -value)
            flat.index_add_(0, where[row, found], signed)
            counts -= torch.bincount(where[row, found], minlength=rows * columns)
        alive[found] = False


@primitive
def estimate_rows(cells: Tensor, ids: Tensor, keys: Tensor, how: Estimate) -> Tensor:
    """Estimate rows of a float32 table by the median (odd) or mean of their cells."""
    estimates = []
    for row, key in zip(cells, keys.tolist(), strict=True):
        column, subtract = places(ids, key, cells.shape[1])
        estimates.append(torch.where(subtract[:, None], -row[column], row[column]))
    if how == "median":
        return torch.stack(estimates).sort(0).values[len(estimates) // 2]
    total = estimates[0]
    for value in estimates[1:]:
        total = total + value
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    return total / torch.tensor(float(len(estimates)), device=cells.device)


def places(ids: Tensor, key: int, columns: int) -> tuple[Tensor, Tensor]:
    """The column of each row, and whether it is subtracted there."""
    words = random_words(key, ids.long())
    return shifted(words, 32) * columns >> 32, (words & 1) == 1
