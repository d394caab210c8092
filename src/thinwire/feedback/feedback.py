"""Feedback: what a rank remembers between steps, and how a gradient is added to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(slots=True)
class FeedbackState:
    """The vectors that one rank accumulates, and the loss scale they are in.

    A collective reduces `x`. `saved` holds by name every vector that must survive a
    checkpoint; it is empty where `x` is overwritten in every step.
    """

    x: Accumulator
    saved: dict[str, Accumulator] = field(default_factory=dict)
    scale: float = 1.0
    _scale_before: float = 1.0

    def begin(self, *, undoable: bool) -> None:
        """Prepare for the next gradient; `undoable` keeps what `undo_` returns to."""
        self._scale_before = self.scale
        for vector in self.saved.values():
            vector.undoable = undoable

    def undo_(self) -> None:
        """Return to the saved vectors before the last gradient, to the bit."""
        for vector in self.saved.values():
            vector.undo_()
        self.scale = self._scale_before

    def rescale_(self, scale: float) -> None:
        """Bring the saved vectors to another loss scale; exact for powers of two."""
        if scale != self.scale:
            for vector in self.saved.values():
                vector.whole().mul_(scale / self.scale)
            self.scale = scale


class Feedback(Protocol):
    """Accumulates gradients before a reduction; updates its state with the mean."""

    def init(self, layout: Layout, device: torch.device) -> FeedbackState: ...

    def accumulate(
        self, grad: Sequence[Tensor], state: FeedbackState, *, scale: float = 1.0
    ) -> None:
        """Add a gradient to `state.x`, and leave zeros in `grad`.

        `grad` is the gradient in consecutive pieces. `scale` is its loss scale; the
        saved vectors are rescaled to it.
        """
        ...

    def settle(self, total: SparseVector | Tensor, state: FeedbackState) -> None:
        """Update the state with a mean that every rank will apply."""
        ...


def accumulate_pieces_(x: Accumulator, grad: Iterable[Tensor], *, keep: float) -> None:
    """`x = x * keep + grad`, piece by piece, in one pass over each."""
    offset = 0
    for piece in grad:
        x.accumulate_(piece, offset=offset, scale=keep)
        offset += piece.numel()
