"""Gaps between indices in LEB128, all gaps at once, one byte of each at a time."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.sections import (
    check_ascending,
    check_length,
    check_order,
    check_spare,
    index_dtype,
)

LONGEST = 9


@primitive
def encode_varint(indices: Tensor) -> Tensor:
    """Gaps in LEB128: seven bits a byte, low ones first; 128 is added if more follow.

    >>> import torch
    >>> encode_varint(torch.tensor([5, 6, 400])).tolist()
    [5, 0, 137, 3]
    """
    before = torch.tensor([-1], device=indices.device)
    gaps = torch.diff(indices.long(), prepend=before) - 1
    check_ascending(bool((gaps >= 0).all()))
    lengths = torch.ones_like(gaps)
    for place in range(1, LONGEST):
        lengths += gaps >= 1 << 7 * place
    starts = lengths.cumsum(0) - lengths
    section = torch.zeros(int(lengths.sum()), dtype=torch.uint8, device=gaps.device)
    for place in range(LONGEST):
        there = lengths > place
        more = (lengths[there] > place + 1).long() << 7
        low = (gaps[there] >> 7 * place) & 127
        section[starts[there] + place] = (low | more).to(torch.uint8)
    return section


@primitive
def decode_varint(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    ends = (section < 128).nonzero().view(-1)[:nnz]
    check_enough(len(ends) == nnz, nnz)
    starts = torch.cat([ends[:0], torch.zeros(1).to(ends), ends[:-1] + 1])[:nnz]
    lengths = ends - starts + 1
    padded_zero = (lengths > 1) & (section[ends] == 0)
    check_shortest(bool((lengths <= LONGEST).all()) and not bool(padded_zero.any()))
    gaps = torch.zeros(nnz, dtype=torch.int64, device=section.device)
    for place in range(LONGEST):
        there = lengths > place
        gaps[there] |= (section[starts[there] + place].long() & 127) << 7 * place
    end = int(ends[-1]) + 1 if nnz else 0
    check_length(section, 8 * end)
    check_spare(not bool(section[end:].any()))
    # The first index out of range is still exact, however often later ones overflow.
    check_order(bool((gaps < size).all()), size)
    indices = (gaps + 1).cumsum(0) - 1
    check_order(bool(((indices >= 0) & (indices < size)).all()), size)
    return indices.to(index_dtype(size))


def check_enough(enough: bool, nnz: int) -> None:  # noqa: FBT001
    if not enough:
        raise ValueError(f"fewer gaps than {nnz}")


def check_shortest(shortest: bool) -> None:  # noqa: FBT001
    if not shortest:
        raise ValueError("a gap that is longer than it need be")
