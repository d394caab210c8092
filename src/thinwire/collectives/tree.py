"""A sum along a binomial tree, any number of ranks: 2 ceil(log2 P) messages at rank 0.

A rank adds its children's buffers to its own, the nearest child first, and sends the
sum to its parent. Rank 0 sends the result back along the tree: all ranks hold the same
bits. The order of additions depends on the number of ranks alone.
"""

from itertools import chain

import torch
from torch import Tensor

from thinwire import schedules
from thinwire.channel import Channel
from thinwire.cost import Cost


def tree_sum_(buffer: Tensor, channel: Channel) -> None:
    """Replace a contiguous buffer by its sum over all ranks."""
    flat = buffer.view(-1)
    merges, rest = schedules.tree(channel.rank, channel.size)
    for i, step in enumerate([*merges, *rest]):
        body = None if step.dst is None else flat.view(torch.uint8)
        received = channel.group.exchange(
            body, dst=step.dst, src=step.src, nbytes=flat.nbytes
        )
        if received is not None and i < len(merges):
            flat += received.view(flat.dtype)
        elif received is not None:
            flat.copy_(received.view(flat.dtype))


def tree_sum_cost(nbytes: int, ranks: int) -> Cost:
    """The cost of rank 0, which first receives as many bytes as it then sends.

    >>> tree_sum_cost(4000, 5)
    Cost(rounds=6, nbytes=12000)
    """
    return schedules.cost(chain(*schedules.tree(0, ranks)), nbytes)
