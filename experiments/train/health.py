"""Gradient norms, to compare a residual with.

They are read from the rows of virtual workers and change nothing. In real processes no
rank sees the mean of gradients that were not sent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 4  # at the end of an epoch, where residuals are looked at too


@dataclass(frozen=True, slots=True)
class Gradients:
    """Norms of gradients as they were computed, before anything is clipped."""

    norm: float  # the mean over workers
    norm_of_mean: float


class GradientNorms:
    """The mean norms of an epoch's last steps; sparse embeddings are left out."""

    def __init__(self, steps: int) -> None:
        self._from = max(steps - _STEPS, 0)
        self._seen: list[Tensor] = []

    @torch.no_grad()
    def observe(self, step: int, rows: Tensor) -> None:
        """Look at the gradients of all workers, where it is time to."""
        if step == 0:
            self._seen = []
        if step >= self._from:
            own = torch.linalg.vector_norm(rows, dim=1).mean()
            self._seen.append(
                torch.stack([own, torch.linalg.vector_norm(rows.mean(0))])
            )

    def read(self) -> Gradients | None:
        """What was seen, which waits for the device; None before an epoch's end."""
        if not self._seen:
            return None
        norm, of_mean = torch.stack(self._seen).mean(0).tolist()
        return Gradients(norm, of_mean)
