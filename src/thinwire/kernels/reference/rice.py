"""Gaps between indices in Rice codes, one bit at a time."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.bits import from_bits, to_bits
from thinwire.kernels.sections import (
    check_ascending,
    check_count,
    check_length,
    check_order,
    index_dtype,
)

BLOCK = 256
WIDEST = 40


@primitive
def encode_rice(indices: Tensor) -> Tensor:
    """Gaps in Rice codes: widths of blocks of 256, remainders, quotients in unary.

    A gap is the number of elements between an index and the one before. A block's width
    is a byte: that many low bits of each of its gaps are the remainders. A quotient is
    that many zeros and a one. The three streams follow without padding.

    >>> import torch
    >>> encode_rice(torch.tensor([3, 20, 30])).tolist()  # 4 * 0 + 3, 4 * 4, 4 * 2 + 1
    [2, 83, 72]
    """
    before = torch.tensor([-1], device=indices.device)
    gaps = torch.diff(indices.long(), prepend=before) - 1
    check_ascending(bool((gaps >= 0).all()))
    widths = _widths(gaps)
    each = widths.repeat_interleave(BLOCK)[: len(gaps)]
    ones = ((gaps >> each) + 1).cumsum(0) - 1
    unary = torch.zeros(int(ones[-1]) + 1 if len(ones) else 0, dtype=torch.uint8)
    unary = unary.to(gaps.device)
    unary[ones] = 1
    parameters = to_bits(widths.to(torch.uint8))
    return from_bits(torch.cat([parameters, _remainders(gaps, each), unary]))


@primitive
def decode_rice(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    blocks = -(-nnz // BLOCK)
    check_room(section, 8 * blocks, nnz)
    widths = section[:blocks].long()
    check_widest(max(widths.tolist(), default=0))
    each = widths.repeat_interleave(BLOCK)[:nnz]
    start = 8 * blocks
    end = start + int(each.sum())
    check_room(section, end, nnz)
    bits = to_bits(section)
    ones = bits[end:].nonzero().view(-1)
    check_count(len(ones), nnz)
    check_length(section, end + int(ones[-1]) + 1 if nnz else 0)
    before = torch.tensor([-1], device=section.device)
    quotients = torch.diff(ones, prepend=before) - 1
    check_order(bool((quotients <= size >> each).all()), size)
    gaps = (quotients << each) + _read_remainders(bits[start:], each)
    # The first index out of range is still exact, however often later ones overflow.
    indices = (gaps + 1).cumsum(0) - 1
    check_order(bool(((indices >= 0) & (indices < size)).all()), size)
    return indices.to(index_dtype(size))


def check_room(section: Tensor, nbits: int, nnz: int) -> None:
    """Refuse a section too short for its remainders and one bit of quotient per gap."""
    if nbits + nnz > 8 * section.numel():
        raise ValueError(f"{nnz} gaps in {section.numel()} bytes")


def check_widest(widest: int) -> None:
    if widest > WIDEST:
        raise ValueError(f"remainders of {widest} bits")


def _widths(gaps: Tensor) -> Tensor:
    """The number of low bits that makes each block shortest; ties to fewer bits."""
    blocks = -(-len(gaps) // BLOCK)
    padded = torch.zeros(blocks * BLOCK, dtype=torch.int64, device=gaps.device)
    padded[: len(gaps)] = gaps
    padded = padded.view(blocks, BLOCK)
    counts = torch.full((blocks,), BLOCK, device=gaps.device)
    counts[-1:] = len(gaps) - BLOCK * (blocks - 1)
    powers = 1 << torch.arange(2, WIDEST, device=gaps.device)
    first = (padded.sum(1) // counts + 1 >= powers[:, None]).sum(0)
    widths, least = first, (first * counts) + (padded >> first[:, None]).sum(1)
    for width in (first + 1, first + 2):
        cost = width * counts + (padded >> width[:, None]).sum(1)
        widths = torch.where(cost < least, width, widths)
        least = torch.minimum(cost, least)
    return widths


def _remainders(gaps: Tensor, widths: Tensor) -> Tensor:
    starts = widths.cumsum(0) - widths
    bits = torch.zeros(int(widths.sum()), dtype=torch.uint8, device=gaps.device)
    for place in range(WIDEST):
        wide = widths > place
        bits[starts[wide] + place] = ((gaps[wide] >> place) & 1).to(torch.uint8)
    return bits


def _read_remainders(bits: Tensor, widths: Tensor) -> Tensor:
    starts = widths.cumsum(0) - widths
    remainders = torch.zeros_like(widths)
    for place in range(WIDEST):
        wide = widths > place
        remainders[wide] |= bits[starts[wide] + place].long() << place
    return remainders
