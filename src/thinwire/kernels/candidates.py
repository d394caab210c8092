"""Candidates: what a backend keeps of a vector in order to select from it fast."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from thinwire.kernels.sections import Sparse


class Candidates(Protocol):
    """A vector that is cut into blocks, and the elements likely to be selected next.

    A backend marks candidates while it accumulates, or extracts them: they are then in
    its memory and not in the vector, until they are taken or restored. Results never
    depend on candidates. Between `accumulate_` and the `select` of a block, or
    `restore_`, only these methods may read or change the vector.

    `accumulator.Accumulator` is the only caller.
    """

    def accumulate_(
        self,
        grad: Tensor,
        *,
        offset: int,
        scale: float,
        before: Tensor | None = None,
    ) -> None:
        """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

        The same elements of `before` become those of `x` as they were.
        """
        ...

    def select(
        self,
        counts: Sequence[int],
        numbers: Sequence[int],
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        """The `counts[i]` largest |v| of block `numbers[i]`; blocks are distinct.

        With `removing`, these are subtracted, rounded to this dtype. The blocks are
        complete afterwards.
        """
        ...

    def add_(self, indices: Tensor, values: Tensor, number: int) -> None:
        """`x[indices] += values` in a block."""
        ...

    def restore_(self) -> None:
        """Put back everything that is extracted, and delete all marks."""
        ...
