"""Checks of the arguments of a group's calls, the same for every implementation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups.group import Group, Op

LENGTH_NBYTES = 8  # a length that travels ahead of its body is one int64


def check_body(body: Tensor) -> None:
    """Refuse anything but a plain vector of bytes."""
    if body.dtype != torch.uint8 or body.dim() != 1:
        raise GroupError(
            "a body must be a one-dimensional uint8 tensor, "
            f"not {body.dim()}-dimensional {body.dtype}"
        )


def check_length(rank: int, body: Tensor, nbytes: int) -> None:
    """Refuse a body of another length than the one its sender announced."""
    if body.numel() != nbytes:
        raise GroupError(
            f"rank {rank} sends {body.numel()} bytes but announced {nbytes}"
        )


def check_exchange(
    group: Group,
    body: Tensor | None,
    *,
    dst: int | None,
    src: int | None,
    nbytes: int | None,
) -> None:
    """Refuse an exchange that no group could carry out."""
    for peer in (dst, src):
        if peer is not None and not 0 <= peer < group.size:
            raise GroupError(f"there is no rank {peer} in a group of {group.size}")
    if (body is None) != (dst is None):
        raise GroupError(f"a body needs a destination and the reverse: dst is {dst}")
    if group.rank in (dst, src) and dst != src:
        raise GroupError(f"rank {group.rank} can exchange with itself only both ways")
    if body is not None:
        check_body(body)
        own = body.numel() if src is not None or nbytes is None else nbytes
        check_length(group.rank, body, own)


def check_receives(group: Group, bodies: Sequence[tuple[int, int]]) -> None:
    """Refuse to wait for bytes that no rank can send."""
    for src, nbytes in bodies:
        if src == group.rank or not 0 <= src < group.size or nbytes < 0:
            raise GroupError(
                f"rank {group.rank} of {group.size} expects {nbytes} bytes of rank "
                f"{src}"
            )


def check_all_to_all(
    group: Group, bodies: Sequence[Tensor], nbytes: Sequence[int] | None
) -> None:
    """Refuse an all-to-all that does not have one body for every rank."""
    if len(bodies) != group.size:
        raise GroupError(f"{len(bodies)} bodies for a group of {group.size}")
    for body in bodies:
        check_body(body)
    if nbytes is None:
        return
    if len(nbytes) != group.size:
        raise GroupError(f"{len(nbytes)} lengths for a group of {group.size}")
    check_length(group.rank, bodies[group.rank], nbytes[group.rank])


def check_all_reduce(parts: Sequence[tuple[Tensor, Op]]) -> None:
    """Refuse tensors that cannot be combined in place or have no bits to combine."""
    for tensor, op in parts:
        if not tensor.is_contiguous():
            raise GroupError("all_reduce_ needs contiguous tensors")
        if op is Op.OR and (tensor.is_floating_point() or tensor.is_complex()):
            raise GroupError(f"OR combines integers, not {tensor.dtype}")
