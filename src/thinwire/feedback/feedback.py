"""The contract of feedback: what a rank remembers between steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from thinwire.kernels import Marker, accumulate_
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(slots=True)
class Memory:
    """One rank's flat float32 vectors by name, and the gradient scale they are in.

    `x` is what a collective works on; every vector that must survive a checkpoint is
    in `saved`.
    """

    x: Tensor
    saved: dict[str, Tensor] = field(default_factory=dict)
    scale: float = 1.0

    def rescale_(self, scale: float) -> None:
        """Bring what is remembered to another scale; exact for powers of two."""
        if scale != self.scale:
            for vector in self.saved.values():
                vector.mul_(scale / self.scale)
            self.scale = scale


class Feedback(Protocol):
    """Accumulates gradients before a reduction and settles accounts after it."""

    def init(self, layout: Layout, device: torch.device) -> Memory: ...

    def accumulate(
        self,
        grad: Sequence[Tensor],
        memory: Memory,
        marker: Marker | None = None,
        *,
        scale: float = 1.0,
    ) -> Tensor:
        """The vector to reduce. Consumes `grad`, leaving zeros.

        `grad` is the gradient in pieces that follow one another; `scale` is the loss
        scale it carries, and what is remembered from other steps is brought to it.
        """
        ...

    def settle(self, total: SparseVector | Tensor, memory: Memory) -> None:
        """Take note of what all ranks were given."""
        ...


def accumulate_pieces_(
    x: Tensor, grad: Sequence[Tensor], marker: Marker | None, *, keep: float
) -> None:
    """`x = x * keep + grad`, piece by piece, in one pass over each."""
    offset = 0
    for piece in grad:
        accumulate_(x, piece, offset=offset, scale=keep, marker=marker)
        offset += piece.numel()
