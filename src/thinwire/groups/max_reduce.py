"""The maximum of all ranks by dissemination: ceil(log2 P) exchanges, for any P.

At distance 1, 2, 4, ... every rank sends its maximum so far to the rank at that
distance after it, and takes the maximum with what it receives. Each exchange doubles
how many ranks have contributed; a contribution that comes twice changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.groups.transport import Transfers
from thinwire.schedules import distances

Works = Any  # receives that are under way


def max_reduce_(
    tensors: Sequence[Tensor],
    rank: int,
    ranks: int,
    *,
    receive: Callable[[Transfers], Works],
    send: Callable[[Transfers, Works], None],
) -> None:
    """Replace the tensors by their maximum over all ranks, element by element.

    `receive` starts to receive, for all exchanges before the first; `send` sends and
    waits, for that and for the receives of the exchange.
    """
    exchanges = []
    for distance in distances(ranks) if tensors else ():
        dst, src = (rank + distance) % ranks, (rank - distance) % ranks
        theirs = [tensor.clone() for tensor in tensors]  # empty ones are not sent
        exchanges.append((dst, theirs, receive([(src, each) for each in theirs])))
    for dst, theirs, under_way in exchanges:
        send([(dst, tensor) for tensor in tensors], under_way)
        for tensor, other in zip(tensors, theirs, strict=True):
            torch.maximum(tensor, other, out=tensor)
    for tensor in tensors:
        canonicalize_(tensor)


def canonicalize_(largest: Tensor) -> None:
    """Give equal numbers equal bits: which zero or NaN is left depends on the rank."""
    if largest.is_floating_point():
        largest.nan_to_num_(torch.nan, torch.inf, -torch.inf).add_(0.0)
