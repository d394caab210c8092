"""Clipping: bounds the norm of a worker's own gradient before it is remembered.

What waits in a residual is delivered later as a sum of steps. Clipping that sum would
cut what is delivered for good, so the gradient of each step is clipped before it is
added (Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3). It costs a pass
that reads the gradient and one that scales it; nothing is communicated.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


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
