"""No feedback: what was not delivered is forgotten. For comparison only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.feedback.feedback import FeedbackState, accumulate_pieces_
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Forget:
    """`x` is scratch space, overwritten by every gradient."""

    def init(self, layout: Layout, device: torch.device) -> FeedbackState:
        return FeedbackState(Accumulator(layout.size, device))

    def accumulate(
        self, grad: Sequence[Tensor], state: FeedbackState, *, scale: float = 1.0
    ) -> None:
        state.x.zero_()  # a product with zero would keep what is not finite
        accumulate_pieces_(state.x, grad, keep=1.0)
        state.scale = scale

    def settle(self, total: SparseVector | Tensor, state: FeedbackState) -> None:
        return None
