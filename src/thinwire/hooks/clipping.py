"""Clipping: bounds the norm of a worker's own gradient before it is remembered.

What waits in a residual is delivered later as a sum of steps. Clipping that sum would
cut what is delivered for good, so the gradient of each step is clipped before it is
added (Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3). It costs a pass
that reads the gradient and one that scales it; nothing is communicated.
"""

from collections.abc import Sequence
from math import inf
from numbers import Real

import torch
from torch import Tensor

from thinwire.errors import ConfigError


def checked_clip(clip: object) -> float | None:
    """A bound as a float; `ConfigError` if it is not one.

    >>> checked_clip(0)
    Traceback (most recent call last):
    thinwire.errors.ConfigError: clip is 0: give the largest norm ...
    """
    if clip is None:
        return None
    number = isinstance(clip, Real) and not isinstance(clip, bool)
    if not number or not 0.0 < float(clip) < inf:  # type: ignore[arg-type]
        raise ConfigError(
            f"clip is {clip!r}: give the largest norm of a worker's gradient, a finite "
            "number above 0, or None"
        )
    return float(clip)  # type: ignore[arg-type]


def clip_(
    pieces: Sequence[Tensor],
    clip: float,
    scale: float = 1.0,
    spared: Sequence[Tensor] = (),
) -> None:
    """Scale a gradient of a larger norm than `clip` down to it, in place.

    `pieces` are all of the gradient; `scale` is its loss scale, of which the bound is
    free. The factor is that of `torch.nn.utils.clip_grad_norm_`. If the norm is not
    finite, everything becomes NaN, what is otherwise `spared` too: the guard then
    refuses the first unit already, and no rank accumulates anything. Does not wait for
    a CUDA device.
    """
    if not pieces:
        return
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float32) for piece in pieces]
    norm = torch.linalg.vector_norm(torch.stack(norms)) / scale
    factor = (clip / (norm + 1e-6)).clamp(max=1.0)
    factor = torch.where(norm.isfinite(), factor, torch.nan)
    if factor.device.type == "cpu" and factor.item() == 1.0:
        return
    for piece in pieces:
        piece.mul_(factor)
    for piece in spared:
        piece.mul_(torch.where(norm.isfinite(), 1.0, torch.nan))
