"""Primitives of sketched rows: bitmaps to read, tables to fill, to peel, to estimate.

A row is a short vector with a number. Its cells in a table of shape (rows of the table,
columns, width) are one per row of the table, in the column that the row's number hashes
to; it is added to some and subtracted from the others, as the hash says. The hash of
number x under `keys[i]` is SplitMix64 of x + 1 begun at the key: the upper half, scaled
to the columns, is the column; the lowest bit says whether to subtract.
"""

from typing import Literal

from torch import Tensor

from thinwire.kernels.entry import backend, entered

Estimate = Literal["median", "mean"]


def set_bits(section: Tensor, size: int) -> Tensor:
    """Which bits of a bitmap are set; `ValueError` from one that is not of `size`.

    >>> import torch
    >>> set_bits(torch.tensor([33, 67], dtype=torch.uint8), 16).tolist()
    [0, 5, 8, 9, 14]
    """
    with entered("set_bits"):
        return backend(section).set_bits(section, size)  # type: ignore[no-any-return]


def sketch_rows(ids: Tensor, values: Tensor, keys: Tensor, columns: int) -> Tensor:
    """A table filled with these rows, in the type of their values, int32 or float32.

    int32 wraps around. Rows are added in the order given.

    >>> import torch
    >>> from thinwire.kernels import hash_keys
    >>> ids, values = torch.tensor([4, 7]), torch.tensor([[1.0], [3.0]])
    >>> sketch_rows(ids, values, hash_keys(7, 0, 1), columns=3).tolist()
    [[[0.0], [1.0], [3.0]]]
    """
    with entered("sketch_rows"):
        return backend(values).sketch_rows(ids, values, keys, columns)  # type: ignore[no-any-return]


def peel_rows_(cells: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of an int32 table, exactly, and the places of those that are stuck.

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
    with entered("peel_rows_"):
        return backend(cells).peel_rows_(cells, ids, keys)  # type: ignore[no-any-return]


def estimate_rows(cells: Tensor, ids: Tensor, keys: Tensor, how: Estimate) -> Tensor:
    """The rows of a float32 table as their cells say, by median (odd) or by mean."""
    with entered("estimate_rows"):
        return backend(cells).estimate_rows(cells, ids, keys, how)  # type: ignore[no-any-return]
