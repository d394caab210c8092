"""Rows: some rows of a matrix, such as a naturally sparse gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a matrix of `count` rows, in float32.

    `ids` are strictly increasing, int32 where `count` < 2**31, else int64; `values` has
    the shape (nnz, width). A row that is listed may be all zero. The constructor does
    not check: a decoder of received bytes checks ids.

    >>> rows = Rows.of({1: [1.0, 2.0], 3: [0.0, -1.0]}, count=5)
    >>> rows.nnz, rows.width
    (2, 2)
    >>> rows.at(torch.tensor([0, 3, 4])).tolist()
    [[0.0, 0.0], [0.0, -1.0], [0.0, 0.0]]
    """

    ids: Tensor
    values: Tensor
    count: int

    @classmethod
    def of(cls, entries: dict[int, list[float]], count: int) -> "Rows":
        """Rows from their values, by number; at least one."""
        ids = sorted(entries)
        return cls(
            torch.tensor(ids, dtype=torch.int32 if count < 2**31 else torch.int64),
            torch.tensor([entries[i] for i in ids], dtype=torch.float32),
            count,
        )

    @property
    def nnz(self) -> int:
        """How many rows are listed."""
        return len(self.ids)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.values.shape[1]

    def at(self, ids: Tensor) -> Tensor:
        """The values of these rows, zeros where they are not listed."""
        if self.nnz == 0:
            return self.values.new_zeros(len(ids), self.width)
        place = torch.searchsorted(self.ids, ids.to(self.ids.dtype))
        place.clamp_(max=self.nnz - 1)
        found = self.values[place]
        found[self.ids[place] != ids] = 0.0
        return found

    def to_dict(self) -> dict[int, list[float]]:
        """The rows by number."""
        return dict(zip(self.ids.tolist(), self.values.tolist(), strict=True))
