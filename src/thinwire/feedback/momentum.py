"""Momentum correction: momentum is applied before selection.

    u = momentum * u + g,  x = x + u;  then u = 0 wherever the total is not

An optimizer's momentum sees an entry only in the step that delivers it, not in those in
which it was in the residual; here every step counts. The velocity of delivered entries
is set to zero, because it is stale and would repeat what was delivered.

Costs two float32 per parameter, and two more dense passes than `Residual`.
Lin et al., Deep Gradient Compression, ICLR 2018, sections 3.2 and 3.3; the mask is the
support of the total, not of this rank's own list.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.arguments import is_number
from thinwire.errors import ConfigError
from thinwire.feedback.feedback import FeedbackState, accumulate_pieces_
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

# Elements of the velocity that are copied at a time: no second vector of its size.
PIECE = 2**20


@dataclass(frozen=True, slots=True)
class Momentum:
    """`x` is the residual of a velocity, which is saved too.

    Set the optimizer's own momentum to 0: its input has momentum already. What it adds
    to a gradient itself (weight decay) gets no momentum, and neither do the gradients
    of sparse embeddings.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not is_number(self.momentum, least=0.0, below=1.0):
            raise ConfigError(
                f"momentum is {self.momentum!r}: choose at least 0 and less than 1, "
                "for example 0.9"
            )

    def init(self, layout: Layout, device: torch.device) -> FeedbackState:
        x, velocity = (Accumulator(layout.size, device) for _ in range(2))
        return FeedbackState(x, saved={"residual": x, "momentum": velocity})

    def accumulate(
        self, grad: Sequence[Tensor], state: FeedbackState, *, scale: float = 1.0
    ) -> None:
        velocity = state.saved["momentum"]
        keep = scale / state.scale
        accumulate_pieces_(velocity, grad, keep=self.momentum * keep)
        # Copies, because an accumulator zeroes what it adds.
        pieces = (piece.clone() for piece in torch.split(velocity.whole(), PIECE))
        accumulate_pieces_(state.x, pieces, keep=keep)
        state.scale = scale

    def settle(self, total: SparseVector | Tensor, state: FeedbackState) -> None:
        if isinstance(total, SparseVector):
            # Entries of zero pad a list: nothing was delivered there.
            delivered = total.indices[total.values != 0]
            rest = torch.zeros(len(delivered), device=delivered.device)
            kernels.scatter_(state.saved["momentum"].whole(), delivered, rest)
