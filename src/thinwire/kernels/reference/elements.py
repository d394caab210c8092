"""Single elements of a block: read, change or replace those that a list names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.dispatch import primitive
from thinwire.kernels.sections import Sparse
from thinwire.kernels.transfers import on_device


def positions(indices: Tensor, block: Block | None) -> Tensor:
    """The indices in the vector of the block's elements, as int64; None: all."""
    if block is None:
        return indices.long()
    local = indices.long()
    if block.contiguous:
        return local + block.start
    return block.start + (local // block.chunk) * block.stride + local % block.chunk


@primitive
def gather(x: Tensor, indices: Tensor, *, block: Block | None = None) -> Tensor:
    """`x[indices]` in a block."""
    return x[positions(indices, block)]


@primitive
def add_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    """`x[indices] += values` in a block."""
    x[positions(indices, block)] += values


@primitive
def subtract_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    """`x[indices] -= values` in a block."""
    x[positions(indices, block)] -= values


@primitive
def leave_at_(
    x: Tensor,
    indices: Tensor,
    held: Tensor,
    sent: Tensor,
    *,
    block: Block | None = None,
) -> None:
    """`x[indices] -= sent` in a block, where `x` is known to hold `held` there."""
    x[positions(indices, block)] = held - sent


@primitive
def return_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    sent: Tensor | None = None,
    holders: tuple[int, int] = (1, 0),
    block: Block | None = None,
) -> None:
    """`x[indices] += values - sent` in a block, or this holder's share of it.

    `holders` is the number of ranks that return the same values, and this rank's number
    among them. If they are a power of two, each adds an equal share; otherwise an entry
    is added by the one whose number is the remainder of its index. Elements whose
    difference is zero are not written, nor are indices of -1.

    >>> x, one = torch.zeros(4), torch.ones(2)
    >>> return_at_(x, torch.tensor([0, 3]), one, sent=one / 2, holders=(2, 1))
    >>> x.tolist()
    [0.25, 0.0, 0.0, 0.25]
    """
    indices, share = share_of(indices, values, sent, holders)
    there = indices >= 0
    x[positions(indices[there], block)] += share[there]


def share_of(
    indices: Tensor, values: Tensor, sent: Tensor | None, holders: tuple[int, int]
) -> Sparse:
    """The entries that one of several holders returns: its share of `values - sent`."""
    count, number = holders
    if sent is not None:
        off = values - sent
        some = off != 0
        indices, values = indices[some], off[some]
    if count & (count - 1) == 0:
        return indices, values if count == 1 else values / count
    mine = indices % count == number
    return indices[mine], values[mine]


@primitive
def scatter_(
    out: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    divisor: float = 1.0,
) -> None:
    """`out[indices] = values / divisor` in a block, rounded to the dtype of `out`."""
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    quotient = values / torch.tensor(divisor, dtype=values.dtype, device=values.device)
    out[positions(indices, block)] = quotient.to(out.dtype)


@primitive
def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    """`values / ranks` into zeroed pieces that follow one another; returned as float32.

    Each piece rounds them to its dtype.

    >>> pieces = torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
    >>> write_mean_(pieces, torch.tensor([1, 3]), torch.tensor([3.0, 9.0]), ranks=3)
    tensor([1., 3.])
    >>> [piece.tolist() for piece in pieces]
    [[0.0, 1.0], [0.0, 3.0]]
    """
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    mean = values / torch.tensor(float(ranks), device=values.device)
    start = 0
    for piece in pieces:
        here = (indices >= start) & (indices < start + piece.numel())
        piece[indices[here].long() - start] = mean[here].to(piece.dtype)
        start += piece.numel()
    return mean


@primitive
def flag_mismatch_(flag: Tensor, section: Tensor, expected: bytes) -> None:
    """Set a flag if a section in device memory differs from these bytes."""
    flag.bitwise_or_((section != on_device(expected, section.device)).any())
