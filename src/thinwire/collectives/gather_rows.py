"""The rows of all ranks to all ranks: (P-1) lists of ids and values per rank.

The fewest bytes if few ranks have few rows. Lengths are sent first.
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.collectives.step_summary import RowMemory
from thinwire.cost import Cost
from thinwire.errors import WireError
from thinwire.rows import Rows

_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class GatherRows:
    """All-gather of rows, added up in order of rank."""

    def sum_rows(self, mine: Rows, channel: Channel, memory: RowMemory) -> Rows:
        return add_up(gather(mine, channel))


def gather(mine: Rows, channel: Channel) -> list[Rows]:
    """Every rank's rows, in order of rank."""
    bodies = channel.group.all_gather(_packed(mine), nbytes=None)
    return [
        mine if rank == channel.rank else _unpacked(body, mine, rank)
        for rank, body in enumerate(bodies)
    ]


def add_up(parts: list[Rows]) -> Rows:
    """The sum of lists of rows, one after the other."""
    ids = torch.unique(torch.cat([part.ids for part in parts]))
    values = torch.zeros(len(ids), parts[0].width, device=ids.device)
    for part in parts:
        # A list has no row twice, so the result is the same on any device.
        values.index_add_(0, torch.searchsorted(ids, part.ids), part.values)
    return Rows(ids, values, parts[0].count)


def card(width: int, ranks: int, rows: int, *, id_nbytes: int = 4) -> Cost:
    """The cost where every rank has `rows` rows."""
    nbytes = 8 + _COUNT.size + rows * (id_nbytes + 4 * width)
    return Cost(2 * (ranks - 1), (ranks - 1) * nbytes)


def _packed(rows: Rows) -> Tensor:
    head = torch.frombuffer(bytearray(_COUNT.pack(rows.nnz)), dtype=torch.uint8)
    ids = rows.ids.contiguous().view(torch.uint8)
    values = rows.values.contiguous().view(-1).view(torch.uint8)
    return torch.cat([head.to(ids.device), ids, values])


def _unpacked(body: Tensor, like: Rows, rank: int) -> Rows:
    """The rows that a peer sent; its bytes are checked."""
    if body.numel() < _COUNT.size:
        raise WireError(f"from rank {rank}: {body.numel()} bytes of rows")
    (nnz,) = _COUNT.unpack(body[: _COUNT.size].cpu().numpy().tobytes())
    split = _COUNT.size + nnz * like.ids.element_size()
    if nnz < 0 or body.numel() != split + 4 * nnz * like.width:
        raise WireError(
            f"from rank {rank}: {body.numel()} bytes do not hold {nnz} rows of "
            f"{like.width} elements"
        )
    # Copies, because a section need not begin where its type may.
    ids = body[_COUNT.size : split].clone().view(like.ids.dtype)
    if not kernels.strictly_increasing(ids, like.count):
        raise WireError(
            f"from rank {rank}: rows that do not increase strictly from 0 up to "
            f"{like.count}"
        )
    values = body[split:].clone().view(torch.float32)
    return Rows(ids, values.view(nnz, like.width), like.count)
