"""Gradients to measure with: fresh in every step, with large and small layers.

Laplace values; each run of 64 k elements has a scale of its own, and half of the
variance is common to all ranks, as with gradients of one model on different data. Drawn
by NumPy, a sixth of torch's time: for large vectors that is most of a measurement.
"""

import numpy as np
import torch
from torch import Tensor

_PERIOD = 1 << 16
_SHARED = 0.5


class Gradients:
    """One rank's, all drawn from the seed.

    >>> alike = [torch.empty(3), torch.empty(3)]
    >>> for grad in alike:
    ...     Gradients(3, rank=1).fill_(grad)
    >>> torch.equal(*alike)
    True
    """

    def __init__(self, size: int, rank: int, seed: int = 0) -> None:
        scales = torch.Generator().manual_seed(seed)
        self._scales = torch.randn(-(-size // _PERIOD), generator=scales).exp_()
        self._shared = np.random.default_rng(seed + 1)
        self._own = np.random.default_rng(seed + 2 + rank)
        self._common = torch.empty(_PERIOD)

    def fill_(self, grad: Tensor) -> None:
        """Replace a gradient by the next one."""
        for part, scale in zip(torch.split(grad, _PERIOD), self._scales, strict=True):
            common = _laplace_(self._common[: part.numel()], self._shared)
            _laplace_(part, self._own).mul_((1 - _SHARED) ** 0.5)
            part.add_(common, alpha=_SHARED**0.5).mul_(scale)


def _laplace_(vector: Tensor, generator: np.random.Generator) -> Tensor:
    values = vector.numpy()
    generator.standard_exponential(dtype=np.float32, out=values)
    signs = np.frombuffer(generator.bytes(len(values)), np.int8)
    np.copysign(values, signs, out=values)
    return vector
