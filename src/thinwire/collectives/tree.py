"""A sum along a binomial tree, any number of ranks: 2 ceil(log2 P) messages at rank 0.

Buffers are added towards rank 0, its own first, then those of its children, the nearest
first, and the sum goes back the same way as it is: all ranks hold the same bits, and
the order of additions depends on the number of ranks alone.
"""

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.cost import Cost


def tree_sum_(buffer: Tensor, channel: Channel) -> None:
    """Replace a contiguous buffer by its sum over all ranks."""
    rank, flat = channel.rank, buffer.view(-1)
    # The parent is as far away as the lowest bit of the rank says, children are nearer.
    depth = (channel.size - 1).bit_length()
    height = depth if rank == 0 else (rank & -rank).bit_length() - 1
    children = [
        rank + 2**level for level in range(height) if rank + 2**level < channel.size
    ]
    for child in children:
        flat += _received(flat, child, channel)
    if rank != 0:
        parent = rank - 2**height
        _send(flat, parent, channel)
        flat.copy_(_received(flat, parent, channel))
    # The farthest child has the most to pass on.
    for child in reversed(children):
        _send(flat, child, channel)


def tree_sum_cost(nbytes: int, ranks: int) -> Cost:
    """What rank 0 pays; it receives as many bytes as it sends, and before.

    >>> tree_sum_cost(4000, 5)
    Cost(rounds=6, nbytes=12000)
    """
    depth = (ranks - 1).bit_length()
    return Cost(2 * depth, depth * nbytes, awaited=depth * nbytes)


def _received(like: Tensor, src: int, channel: Channel) -> Tensor:
    body = channel.exchange_bytes(None, dst=None, src=src, nbytes=like.nbytes)
    return body.view(like.dtype)


def _send(flat: Tensor, dst: int, channel: Channel) -> None:
    body = flat.view(torch.uint8)
    channel.exchange_bytes(body, dst=dst, src=None, nbytes=flat.nbytes)
