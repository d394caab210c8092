"""Gradients to measure with: fresh in every step, with large and small layers.

Laplace values; each run of 64 k elements has a scale of its own, and half of the
variance is common to all ranks, as with gradients of one model on different data. To
draw them takes most of a measurement, so NumPy does, in a sixth of torch's time, and
what is common to ranks is one run, turned to begin elsewhere in every other.
"""

import numpy as np
import torch
from torch import Tensor

_PERIOD = 1 << 16
_SHARED = 0.5


class Gradients:
    """One rank's, all drawn from the seed.

    >>> same = [torch.empty(3), torch.empty(3)]
    >>> for grad in same:
    ...     Gradients(3, rank=1).fill_(grad)
    >>> torch.equal(*same)
    True
    """

    def __init__(self, size: int, rank: int, seed: int = 0) -> None:
        scales = torch.Generator().manual_seed(seed)
        self._scales = torch.randn(-(-size // _PERIOD), generator=scales).exp_()
        self._shared = np.random.default_rng(seed + 1)
        self._own = np.random.default_rng(seed + 2 + rank)
        self._common = torch.empty(2 * _PERIOD)

    def fill_(self, grad: Tensor) -> None:
        """Replace a gradient by the next one."""
        once, again = torch.split(self._common, _PERIOD)
        again.copy_(_laplace_(once, self._shared))
        starts = self._shared.integers(_PERIOD, size=len(self._scales))
        parts = torch.split(grad, _PERIOD)
        for part, scale, start in zip(parts, self._scales, starts, strict=True):
            common = self._common[start : start + part.numel()]
            _laplace_(part, self._own).mul_((1 - _SHARED) ** 0.5)
            part.add_(common, alpha=_SHARED**0.5).mul_(scale)


def _laplace_(vector: Tensor, generator: np.random.Generator) -> Tensor:
    values = vector.numpy()
    generator.standard_exponential(dtype=np.float32, out=values)
    signs = np.frombuffer(generator.bytes(len(values)), np.int8)
    np.copysign(values, signs, out=values)
    return vector
