"""The maximum of all ranks by dissemination: ceil(log2 P) exchanges, for any P.

At distance 1, 2, 4, ... every rank sends what it has to the rank so far after it and
keeps the larger of that and what comes in. Each exchange doubles how many ranks before
it a rank has heard of; one that is heard of twice changes nothing.
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
    """Leave the largest of all ranks in the tensors, element by element.

    `receive` starts to receive a mail, and `send` sends one and waits, for that and for
    what is under way: all of it is, from the start.
    """
    exchanges = []
    for distance in distances(ranks) if tensors else ():
        dst, src = (rank + distance) % ranks, (rank - distance) % ranks
        theirs = [tensor.clone() for tensor in tensors]  # what is not sent adds nothing
        exchanges.append((dst, theirs, receive([(src, each) for each in theirs])))
    for dst, theirs, under_way in exchanges:
        send([(dst, tensor) for tensor in tensors], under_way)
        for tensor, other in zip(tensors, theirs, strict=True):
            torch.maximum(tensor, other, out=tensor)
    for tensor in tensors:
        canonicalize_(tensor)


def canonicalize_(largest: Tensor) -> None:
    """Give equal numbers equal bits: which zero or NaN was kept depends on the rank."""
    if largest.is_floating_point():
        largest.nan_to_num_(torch.nan, torch.inf, -torch.inf).add_(0.0)
