"""Single elements of a block: 5 ns each where the vector is cold, 1 ns where it is not.

An index outside its block is never followed: the kernels return False, and the
primitives raise `IndexError`, with the entries before it already done.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cpu.arrays import Bits, Floats, Indices, Place, array_of, place_of
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.reference.elements import share_of

NO_WORDS = np.empty(0, np.int64)


def gather(x: Tensor, indices: Tensor, *, block: Block | None = None) -> Tensor:
    values = torch.empty(indices.numel(), dtype=x.dtype)
    place = place_of(x, block)
    check_inside(read_entries(place, array_of(indices), array_of(values)), place)
    return values


def add_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    place = place_of(x, block)
    given = (array_of(indices), array_of(values), np.float32(1), NO_WORDS)
    check_inside(add_entries(place, *given), place)


def subtract_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    given = (array_of(indices), array_of(values), np.float32(-1), NO_WORDS)
    place = place_of(x, block)
    check_inside(add_entries(place, *given), place)


def leave_at_(
    x: Tensor,
    indices: Tensor,
    held: Tensor,
    sent: Tensor,
    *,
    block: Block | None = None,
) -> None:
    given = (array_of(indices), array_of(held), array_of(sent))
    place = place_of(x, block)
    check_inside(replace_entries(place, *given), place)


def return_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    sent: Tensor | None = None,
    holders: tuple[int, int] = (1, 0),
    block: Block | None = None,
) -> None:
    # Zero differences are not written: that would load memory that is not cached.
    mine = share_of(indices, values, sent, holders)
    given = (array_of(mine[0]), array_of(mine[1]), np.float32(1), NO_WORDS)
    place = place_of(x, block)
    check_inside(add_entries(place, *given), place)


def scatter_(
    out: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    divisor: float = 1.0,
) -> None:
    quotient = values if divisor == 1.0 else values / divisor
    bits, rounded = out, quotient.to(out.dtype)
    if out.dtype != torch.float32:
        bits, rounded = out.view(torch.uint16), rounded.view(torch.uint16)
    given = (array_of(indices), array_of(rounded))
    place = place_of(bits, block)
    check_inside(write_entries(place, *given), place)


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    mean = values / ranks
    starts = [0, *accumulate(piece.numel() for piece in pieces)]
    listed = array_of(indices)
    cuts = np.searchsorted(listed, np.array(starts, listed.dtype)).tolist()
    for piece, start, (low, high) in zip(pieces, starts, pairwise(cuts), strict=False):
        mine = (indices[low:high], mean[low:high])
        if start:
            mine = (mine[0] - start, mine[1])
        scatter_(piece, *mine, block=Block.whole(piece.numel()), divisor=1.0)
    return mean


def check_inside(inside: bool, place: Place) -> None:  # noqa: FBT001
    """Raise `IndexError` if a kernel met an index outside its block."""
    if not inside:
        raise IndexError(f"an index lies outside a block of {place[-1]} elements")


# Element j of a block lies behind as many gaps between chunks as there are whole
# chunks before it. Chunks are a power of two, as a rule, and dividing by it is a shift:
# walking from chunk to chunk instead is a branch that is mispredicted at each.


@part
def chunk_bits(chunk: int, stride: int) -> int:
    """The shift that replaces a division by a chunk; -1 if it is no power of two.

    Where there are no gaps, it does not matter which chunk an element is in.
    """
    if stride == chunk:
        return 62
    bits = 0
    while 1 << bits < chunk:
        bits += 1
    return bits if 1 << bits == chunk else -1


@kernel
def read_entries(place: Place, indices: Indices, values: Floats) -> bool:
    """`values = x[indices]`."""
    x, start, chunk, stride, length = place
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        values[i] = x[np.uintp(at)]
    return True


@kernel
def write_entries(place: Place, indices: Indices, values: NDArray[Any]) -> bool:
    """`x[indices] = values`."""
    x, start, chunk, stride, length = place
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        x[np.uintp(at)] = values[i]
    return True


@kernel
def add_entries(
    place: Place, indices: Indices, values: Floats, sign: Any, words: Bits
) -> bool:
    """`x[indices] += sign * values`, marked in `words` unless that is empty."""
    x, start, chunk, stride, length = place
    bits = chunk_bits(chunk, stride)
    marking = len(words) > 0
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        x[np.uintp(at)] += sign * values[i]
        if marking:
            words[np.uintp(j >> 6)] |= np.int64(1) << (j & 63)
    return True


@kernel
def replace_entries(place: Place, indices: Indices, held: Floats, sent: Floats) -> bool:
    """`x[indices] = held - sent`."""
    x, start, chunk, stride, length = place
    bits = chunk_bits(chunk, stride)
    for i in range(len(indices)):
        j: Any = np.int64(indices[i])
        if j < 0 or j >= length:
            return False
        at = start + j + (j >> bits if bits >= 0 else j // chunk) * (stride - chunk)
        x[np.uintp(at)] = held[i] - sent[i]
    return True
