"""The maximum of all ranks by dissemination: ceil(log2 P) exchanges, for any P.

At distance 1, 2, 4, ... every rank sends its maximum so far to the rank at that
distance after it, and takes the maximum with what it receives. Each exchange doubles
how many ranks have contributed; a contribution that comes twice changes nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire.schedules import distances

if TYPE_CHECKING:  # simulated groups do without torch.distributed
    from thinwire.groups.transport import Transport


def max_reduce_(tensors: Sequence[Tensor], transport: "Transport") -> None:
    """Replace the tensors by their maximum over all ranks, element by element."""
    rank, ranks = transport.process_group.rank(), transport.process_group.size()
    hops = distances(ranks) if tensors else []
    transport.post_receives(
        [((rank - hop) % ranks, each.nbytes) for hop in hops for each in tensors]
    )
    for hop in hops:
        dst, src = (rank + hop) % ranks, (rank - hop) % ranks
        received = transport.swap(
            [(dst, tensor.view(-1).view(torch.uint8)) for tensor in tensors],
            [(src, tensor.nbytes) for tensor in tensors],
        )
        for tensor, (_, body) in zip(tensors, received, strict=True):
            theirs = body.view(tensor.dtype).view(tensor.shape)
            torch.maximum(tensor, theirs, out=tensor)
    for tensor in tensors:
        canonicalize_(tensor)


def canonicalize_(largest: Tensor) -> None:
    """Give equal numbers equal bits: which zero or NaN is left depends on the rank."""
    if largest.is_floating_point():
        largest.nan_to_num_(torch.nan, torch.inf, -torch.inf).add_(0.0)
