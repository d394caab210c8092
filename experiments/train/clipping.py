"""Clipped: a feedback that clips each rank's gradient before it accumulates.

A gradient that waits in a residual meets others there, so that clipping what is
delivered at last would cut sums of many steps. Each rank may instead give its own
gradient 1/sqrt(P) of the norm that the mean may have. Lin et al., Deep Gradient
Compression, ICLR 2018, section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, FeedbackState, Residual
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Clipped:
    """Scales a gradient of more than `norm` down to it, then does as `then` does."""

    norm: float
    then: Feedback = field(default_factory=Residual)

    def __post_init__(self) -> None:
        if not self.norm > 0.0:
            raise ConfigError(f"norm is {self.norm}: give a bound above 0")

    def init(self, layout: Layout, device: torch.device) -> FeedbackState:
        return self.then.init(layout, device)

    def accumulate(
        self, grad: Sequence[Tensor], state: FeedbackState, *, scale: float = 1.0
    ) -> None:
        norms = torch.stack([torch.linalg.vector_norm(piece.float()) for piece in grad])
        # As torch.nn.utils.clip_grad_norm_ does, and without waiting for the device.
        factor = self.norm * scale / (torch.linalg.vector_norm(norms) + 1e-6)
        for piece in grad:
            piece.mul_(factor.clamp(max=1.0))
        self.then.accumulate(grad, state, scale=scale)

    def settle(self, total: SparseVector | Tensor, state: FeedbackState) -> None:
        self.then.settle(total, state)
