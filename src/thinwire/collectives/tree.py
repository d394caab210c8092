"""A sum along a binomial tree, any number of ranks: 2 ceil(log2 P) messages at rank 0.

Buffers are added towards rank 0, its own first, then those of its children, the nearest
first, and the sum goes back the same way as it is: all ranks hold the same bits, and
the order of additions depends on the number of ranks alone.
"""

from itertools import chain

import torch
from torch import Tensor

from thinwire import schedules
from thinwire.channel import Channel
from thinwire.cost import Cost
from thinwire.schedules import Step


def tree_sum_(buffer: Tensor, channel: Channel) -> None:
    """Replace a contiguous buffer by its sum over all ranks."""
    flat = buffer.view(-1)
    merges, rest = schedules.tree(channel.rank, channel.size)
    for step in merges:
        flat += _exchanged(flat, step, channel)
    for step in rest:
        received = _exchanged(flat, step, channel)
        if step.src is not None:
            flat.copy_(received)


def tree_sum_cost(nbytes: int, ranks: int) -> Cost:
    """What rank 0 pays; it receives as many bytes as it sends, and before.

    >>> tree_sum_cost(4000, 5)
    Cost(rounds=6, nbytes=12000)
    """
    return schedules.cost(chain(*schedules.tree(0, ranks)), nbytes)


def _exchanged(flat: Tensor, step: Step, channel: Channel) -> Tensor:
    body = None if step.dst is None else flat.view(torch.uint8)
    received = channel.exchange_bytes(
        body, dst=step.dst, src=step.src, nbytes=flat.nbytes
    )
    return received.view(flat.dtype)
