# ruff: noqa: D103, because the front door documents each function.
"""Sketched rows, all rows at a time: peeling in rounds, as its inventors state it."""

import torch
from torch import Tensor

from thinwire.kernels.reference_bits import to_bits
from thinwire.kernels.reference_sketch import mixed, shifted
from thinwire.kernels.sections import check_length, check_spare, index_dtype


def set_bits(section: Tensor, size: int) -> Tensor:
    check_length(section, size)
    ones = to_bits(section).nonzero().view(-1)
    check_spare(len(ones) == 0 or int(ones[-1]) < size)
    return ones.to(index_dtype(size))


def sketch_rows(ids: Tensor, values: Tensor, keys: Tensor, columns: int) -> Tensor:
    shape = (len(keys), columns, values.shape[1])
    cells = torch.zeros(shape, dtype=values.dtype, device=values.device)
    for row, key in zip(cells, keys.tolist(), strict=True):
        column, subtract = places(ids, key, columns)
        row.index_add_(0, column, torch.where(subtract[:, None], -values, values))
    return cells


def peel_rows_(cells: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
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


def estimate_rows(cells: Tensor, ids: Tensor, keys: Tensor, how: str) -> Tensor:
    said = []
    for row, key in zip(cells, keys.tolist(), strict=True):
        column, subtract = places(ids, key, cells.shape[1])
        said.append(torch.where(subtract[:, None], -row[column], row[column]))
    if how == "median":
        return torch.stack(said).sort(0).values[len(said) // 2]
    total = said[0]
    for value in said[1:]:
        total = total + value
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    return total / torch.tensor(float(len(said)), device=cells.device)


def places(ids: Tensor, key: int, columns: int) -> tuple[Tensor, Tensor]:
    """The column of each row, and whether it is subtracted there."""
    words = mixed(key, ids.long())
    return shifted(words, 32) * columns >> 32, (words & 1) == 1
