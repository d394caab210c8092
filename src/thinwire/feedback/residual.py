"""Error feedback: what was not delivered is added to the next gradient.

Costs one float32 per parameter and no extra time: the pass that adds the gradient also
marks candidates. Karimireddy et al., ICML 2019; Stich et al., NeurIPS 2018.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.feedback.feedback import FeedbackState, accumulate_pieces_
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Residual:
    """`x` is the residual: a collective leaves in it what it did not deliver."""

    def init(self, layout: Layout, device: torch.device) -> FeedbackState:
        x = Accumulator(layout.size, device)
        return FeedbackState(x, saved={"residual": x})

    def accumulate(
        self, grad: Sequence[Tensor], state: FeedbackState, *, scale: float = 1.0
    ) -> None:
        accumulate_pieces_(state.x, grad, keep=scale / state.scale)
        state.scale = scale

    def settle(self, total: SparseVector | Tensor, state: FeedbackState) -> None:
        return None
