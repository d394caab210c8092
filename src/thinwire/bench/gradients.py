"""Gradients to measure with: fresh in every step, with large and small layers.

Laplace values; each run of 64 k elements has a scale of its own, and half of the
variance is common to all ranks, as with gradients of one model on different data.
"""

import torch
from torch import Tensor

_PERIOD = 1 << 16
_SHARED = 0.5


class Gradients:
    """One rank's, all drawn from the seed."""

    def __init__(self, size: int, rank: int, seed: int = 0) -> None:
        scales = torch.Generator().manual_seed(seed)
        self._scales = torch.randn(-(-size // _PERIOD), generator=scales).exp_()
        self._shared = torch.Generator().manual_seed(seed + 1)
        self._own = torch.Generator().manual_seed(seed + 2 + rank)
        self._signs = torch.empty(_PERIOD, dtype=torch.int8)
        self._common = torch.empty(_PERIOD)

    def fill_(self, grad: Tensor) -> None:
        """Replace a gradient by the next one."""
        for part, scale in zip(torch.split(grad, _PERIOD), self._scales, strict=True):
            common = self._common[: part.numel()]
            self._laplace_(common, self._shared)
            self._laplace_(part, self._own).mul_((1 - _SHARED) ** 0.5)
            part.add_(common, alpha=_SHARED**0.5).mul_(scale)

    def _laplace_(self, vector: Tensor, generator: torch.Generator) -> Tensor:
        signs = self._signs[: vector.numel()].random_(0, 2, generator=generator)
        signs.mul_(2).sub_(1)
        return vector.exponential_(generator=generator).mul_(signs)
