"""Naturally sparse gradients (`nn.Embedding(sparse=True)`): every rank's rows, exactly.

An all-gather of the touched rows, added in order of rank: no selection, no residual.
"""

import struct

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.groups import Group

_COUNT = struct.Struct("<q")


def mean_of_rows(grad: Tensor, group: Group) -> Tensor:
    """The mean of a sparse COO tensor over all ranks; the same bits everywhere."""
    mine = grad.coalesce()
    bodies = group.all_gather(_pack(mine), nbytes=None)
    parts = [_unpack(body, mine, rank) for rank, body in enumerate(bodies)]
    indices = torch.cat([indices for indices, _ in parts], dim=1)
    values = torch.cat([values for _, values in parts])
    # coalesce() adds duplicates in the order given: the order of rank.
    total = torch.sparse_coo_tensor(
        indices, values, mine.shape, check_invariants=False
    ).coalesce()
    return torch.sparse_coo_tensor(
        total.indices(),
        (total.values() / group.size).to(grad.dtype),
        mine.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def one_row(like: Tensor) -> Tensor:
    """A gradient that touches the first row alone, so that ranks touch the same one."""
    dims = like.sparse_dim()
    count = min(1, like.numel())
    return torch.sparse_coo_tensor(
        torch.zeros(dims, count, dtype=torch.int64, device=like.device),
        torch.zeros(count, *like.shape[dims:], dtype=like.dtype, device=like.device),
        like.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def _pack(rows: Tensor) -> Tensor:
    count = torch.frombuffer(
        bytearray(_COUNT.pack(rows.values().shape[0])), dtype=torch.uint8
    )
    indices = rows.indices().contiguous().view(-1).view(torch.uint8)
    values = rows.values().float().contiguous().view(-1).view(torch.uint8)
    return torch.cat([count.to(rows.device), indices, values])


def _unpack(body: Tensor, like: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The rows a peer sent; bytes are not believed."""
    dims = like.sparse_dim()
    row_shape = like.shape[dims:]
    if body.numel() < _COUNT.size:
        raise WireError(f"from rank {rank}: {body.numel()} bytes of rows")
    (count,) = _COUNT.unpack(body[: _COUNT.size].cpu().numpy().tobytes())
    split = _COUNT.size + 8 * dims * count
    if count < 0 or body.numel() != split + 4 * count * row_shape.numel():
        raise WireError(
            f"from rank {rank}: {body.numel()} bytes do not hold {count} rows of "
            f"shape {tuple(row_shape)}"
        )
    indices = body[_COUNT.size : split].view(torch.int64).view(dims, count)
    bounds = torch.tensor(like.shape[:dims], device=body.device).unsqueeze(1)
    if bool(((indices < 0) | (indices >= bounds)).any()):
        raise WireError(f"from rank {rank}: a row outside {tuple(like.shape)}")
    return indices, body[split:].view(torch.float32).view(count, *row_shape)
