"""The run lengths of a bitmap, found in the list of its ones."""

import struct

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.bits import (
    check_room,
    clean_from,
    pack_bits,
    unpack_bits,
)
from thinwire.kernels.sections import (
    check_ascending,
    check_count,
    check_length,
    check_spare,
    index_dtype,
)

HEADER = struct.Struct("<IB3s")


@primitive
def encode_runs(indices: Tensor, size: int) -> Tensor:
    """The run lengths of a bitmap, zeros first: how many (u32), width (u8), packed.

    Three zero bytes come before the packed lengths. Only the first can be zero.

    >>> import torch
    >>> encode_runs(torch.tensor([2, 3, 7]), 10).tolist()
    [5, 0, 0, 0, 2, 0, 0, 0, 122, 2]
    """
    ones = indices.long()
    inside = bool((torch.diff(ones) > 0).all()) and (
        len(ones) == 0 or (int(ones[0]) >= 0 and int(ones[-1]) < size)
    )
    check_ascending(inside)
    apart = torch.diff(ones) != 1
    yes = torch.ones(min(len(ones), 1), dtype=torch.bool, device=ones.device)
    first = torch.cat([yes, apart])
    last = torch.cat([apart, yes])
    edges = torch.stack([ones[first], ones[last] + 1], 1).view(-1)
    ends = torch.tensor([0, size], device=ones.device)
    runs = torch.diff(torch.cat([ends[:1], edges, ends[1:]]))
    if len(edges) and int(edges[-1]) == size:
        runs = runs[:-1]
    width = int(runs.max()).bit_length()
    header = HEADER.pack(len(runs), width, bytes(3))
    start = torch.frombuffer(bytearray(header), dtype=torch.uint8).to(indices.device)
    return torch.cat([start, pack_bits(runs, width)])


@primitive
def decode_runs(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    check_room(section, HEADER.size, 8)
    count, width, reserved = HEADER.unpack(bytes(section[: HEADER.size].tolist()))
    check_header(count, width, reserved, nnz)
    packed = section[HEADER.size :]
    check_length(packed, count * width)
    runs = unpack_bits(packed, count, width)
    check_spare(clean_from(packed, count * width))
    # The first edge out of range is still exact, however often later ones overflow.
    edges = runs.cumsum(0)
    in_range = bool(((runs <= size) & (edges >= 0) & (edges <= size)).all())
    check_runs(
        in_range and int(edges[-1]) == size and not bool((runs[1:] == 0).any()), size
    )
    lengths, starts = runs[1::2], edges[: 2 * (count // 2) : 2]
    check_count(int(lengths.sum()), nnz)
    shifts = starts - (lengths.cumsum(0) - lengths)
    places = torch.arange(nnz, device=section.device)
    return (places + shifts.repeat_interleave(lengths)).to(index_dtype(size))


def check_header(count: int, width: int, reserved: bytes, nnz: int) -> None:
    """Refuse a number of runs that `nnz` ones, or no bits at all, cannot have."""
    if any(reserved):
        raise ValueError("a header that sets reserved bits")
    if not 1 <= count <= 2 * nnz + 1:
        raise ValueError(f"{count} run lengths of {nnz} ones")
    if count > 1 and width == 0:
        raise ValueError(f"{count} run lengths in no bits")


def check_runs(possible: bool, size: int) -> None:  # noqa: FBT001
    if not possible:
        raise ValueError(f"run lengths that do not make up {size} elements")
