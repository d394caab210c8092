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
    pieces: list[Tensor],
    clip: float,
    scale: float = 1.0,
    spared: Sequence[Tensor] = (),
) -> None:
    """Scale a gradient of a larger norm than `clip` down to it, in place.

    `pieces` are all of the gradient, one for each parameter: the norm is that of their
    norms, in this order. `scale` is its loss scale, of which the bound is
    free. The factor is that of `torch.nn.utils.clip_grad_norm_`. If the norm is not
    finite, everything becomes NaN, what is otherwise `spared` too: the guard then
    refuses the first unit already, and no rank accumulates anything. Does not wait for
    a CUDA device.
    """
    if not pieces:
        return
    norms = torch._foreach_norm(pieces, 2, torch.float32)  # noqa: SLF001
    norm = torch.linalg.vector_norm(torch.stack(norms)) / scale
    factor = (clip / (norm + 1e-6)).clamp(max=1.0)
    factor = torch.where(norm.isfinite(), factor, torch.nan)
    if factor.device.type == "cpu" and factor.item() == 1.0:
        return
    torch._foreach_mul_(pieces, factor)
    if spared:
        unless_finite = torch.where(norm.isfinite(), 1.0, torch.nan)
        torch._foreach_mul_([*spared], unless_finite)
