"""Whole numbers in a fixed number of bits each, one bit at a time."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive

WIDEST = 63


@primitive
def pack_bits(values: Tensor, width: int) -> Tensor:
    """The low `width` bits (at most 63) of whole numbers, in bytes without gaps.

    Number i takes bits `i * width` to `(i + 1) * width`; the least significant comes
    first, in a number and in a byte.

    >>> import torch
    >>> pack_bits(torch.tensor([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    check_width(width)
    bits = torch.empty(len(values), width, dtype=torch.uint8, device=values.device)
    for place in range(width):
        bits[:, place] = (values.long() >> place) & 1
    return from_bits(bits.view(-1))


@primitive
def unpack_bits(section: Tensor, count: int, width: int) -> Tensor:
    """`count` numbers of `width` bits, as int64; `ValueError` from too few bytes.

    >>> import torch
    >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 3, 4).tolist()
    [1, 2, 3]
    """
    check_room(section, count, width)
    bits = to_bits(section)[: count * width].view(count, width)
    values = torch.zeros(count, dtype=torch.int64, device=section.device)
    for place in range(width):
        values |= bits[:, place].long() << place
    return values


def from_bits(bits: Tensor) -> Tensor:
    """Bytes of eight bits each, the first of them least significant."""
    whole = torch.zeros(-(-len(bits) // 8) * 8, dtype=torch.uint8, device=bits.device)
    whole[: len(bits)] = bits
    octets = whole.view(-1, 8)
    section = torch.zeros(len(octets), dtype=torch.uint8, device=bits.device)
    for place in range(8):
        section |= octets[:, place] << place
    return section


def to_bits(section: Tensor) -> Tensor:
    """The bits of bytes, 0 or 1 each."""
    places = torch.arange(8, dtype=torch.uint8, device=section.device)
    return ((section[:, None] >> places) & 1).view(-1)


def clean_from(section: Tensor, nbits: int) -> bool:
    """Whether no bit from `nbits` on is set."""
    return not bool(to_bits(section[nbits // 8 :])[nbits % 8 :].any())


def check_width(width: int) -> None:
    if not 0 <= width <= WIDEST:
        raise ValueError(f"{width} bits where 0 to {WIDEST} are possible")


def check_room(section: Tensor, count: int, width: int) -> None:
    check_width(width)
    if 8 * section.numel() < count * width:
        raise ValueError(f"{count} times {width} bits in {section.numel()} bytes")
