"""No feedback: what was not delivered is forgotten. For comparison only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.feedback.feedback import Memory, accumulate_pieces_
from thinwire.kernels import Marker, zeros
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Forget:
    """`x` is scratch space, overwritten by every gradient."""

    def init(self, layout: Layout, device: torch.device) -> Memory:
        return Memory(zeros(layout.size, device))

    def accumulate(
        self,
        grad: Sequence[Tensor],
        memory: Memory,
        marker: Marker | None = None,
        *,
        scale: float = 1.0,
    ) -> Tensor:
        memory.x.zero_()  # a product with zero would keep what is not finite
        accumulate_pieces_(memory.x, grad, marker, keep=1.0)
        memory.scale = scale
        return memory.x

    def settle(self, total: SparseVector | Tensor, memory: Memory) -> None:
        return None
