"""Selection without candidates: every block is sorted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels import candidates
from thinwire.kernels.blocks import Block
from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.accumulate import accumulate_, select
from thinwire.kernels.reference.elements import add_at_, leave_at_
from thinwire.kernels.reference.halves import to_bfloat16
from thinwire.kernels.sections import Sparse


class Candidates:
    """The contract in terms of primitives that look at whole blocks."""

    def __init__(self, x: Tensor, blocks: tuple[Block, ...]) -> None:
        self._x, self._blocks = x, blocks

    def accumulate_(
        self,
        grad: Tensor,
        *,
        offset: int,
        scale: float,
        before: Tensor | None = None,
    ) -> None:
        accumulate_(self._x, grad, offset=offset, scale=scale, before=before)

    def select(
        self,
        counts: Sequence[int],
        numbers: Sequence[int],
        removing: torch.dtype | None,
    ) -> list[Sparse]:
        taken = []
        for k, number in zip(counts, numbers, strict=True):
            block = self._blocks[number]
            indices, values = select(self._x, k, block=block)
            if removing is not None:
                sent = values
                if removing == torch.bfloat16:
                    sent = to_bfloat16(values).float()
                leave_at_(self._x, indices, values, sent, block=block)
            taken.append((indices, values))
        return taken

    def add_(self, indices: Tensor, values: Tensor, number: int) -> None:
        add_at_(self._x, indices, values, block=self._blocks[number])

    def restore_(self) -> None:
        return None


@primitive
def new_candidates(x: Tensor, blocks: tuple[Block, ...]) -> candidates.Candidates:
    """The candidates of a vector, as its device's backend keeps them."""
    return Candidates(x, blocks)
