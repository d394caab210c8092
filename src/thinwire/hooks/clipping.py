"""Clipping: bounds the norm of a worker's own gradient before it is remembered.

What waits in a residual is delivered later as a sum of steps. Clipping that sum would
cut what is delivered for good, so the gradient of each step is clipped before it is
added (Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3). It costs a pass
that reads the gradient and one that scales it; nothing is communicated, but for the
norms of shards.
"""

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.groups import Group, Op


def clip_(
    pieces: list[Tensor],
    clip: float,
    scale: float = 1.0,
    spared: Sequence[Tensor] = (),
    *,
    group: Group | None = None,
) -> None:
    """Scale a gradient of a larger norm than `clip` down to it, in place.

    `pieces` are all of the gradient, one for each parameter: the norm is that of their
    norms, in this order. `scale` is its loss scale, of which the bound is
    free. The factor is that of `torch.nn.utils.clip_grad_norm_`. If the norm is not
    finite, everything becomes NaN, what is otherwise `spared` too: the guard then
    refuses the first unit already, and no rank accumulates anything. Does not wait for
    a CUDA device, but where `group` reduces one shard of several: the norm is then that
    of all shards of this replica.
    """
    if group is not None and group.everyone is group:
        group = None
    if not pieces and group is None:
        return
    norms = torch._foreach_norm(pieces, 2, torch.float32)  # noqa: SLF001
    norm = torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())])) / scale
    if group is not None:
        norm = _over_shards(norm, group)
    factor = (clip / (norm + 1e-6)).clamp(max=1.0)
    factor = torch.where(norm.isfinite(), factor, torch.nan)
    if factor.device.type == "cpu" and factor.item() == 1.0:
        return
    torch._foreach_mul_(pieces, factor)
    if spared:
        unless_finite = torch.where(norm.isfinite(), 1.0, torch.nan)
        torch._foreach_mul_([*spared], unless_finite)


def _over_shards(norm: Tensor, group: Group) -> Tensor:
    """The norm of a gradient, from those of the shards of one replica."""
    everyone = group.everyone
    shards = everyone.size // group.size
    # Every rank fills in its own: a maximum takes fewer messages than other ways.
    norms = torch.zeros(everyone.size, dtype=torch.float64)
    own = float(kernels.fetch(norm))
    norms[everyone.rank] = own if isfinite(own) else inf
    everyone.all_reduce_((norms, Op.MAX))
    first = everyone.rank // shards * shards
    whole = torch.linalg.vector_norm(norms[first : first + shards])
    return torch.as_tensor(whole, dtype=norm.dtype, device=norm.device)
