"""Error feedback: whatever was not delivered is added to the next gradient.

Costs one float32 per parameter and no time of its own: the addition is the dense pass
that also marks candidates. Karimireddy et al., ICML 2019; Stich et al., NeurIPS 2018.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.feedback.feedback import Memory, accumulate_pieces_
from thinwire.kernels import Marker, zeros
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Residual:
    """`x` is the residual: a collective leaves in it what it did not deliver."""

    def init(self, layout: Layout, device: torch.device) -> Memory:
        x = zeros(layout.size, device)
        return Memory(x, saved={"residual": x})

    def accumulate(
        self,
        grad: Sequence[Tensor],
        memory: Memory,
        marker: Marker | None = None,
        *,
        scale: float = 1.0,
    ) -> Tensor:
        accumulate_pieces_(memory.x, grad, marker, keep=scale / memory.scale)
        memory.scale = scale
        return memory.x

    def settle(self, total: SparseVector | Tensor, memory: Memory) -> None:
        return None
