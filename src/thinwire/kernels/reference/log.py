"""Values in a few bits: a sign and one of the levels of a list's magnitudes.

First the levels as ascending float32, 2**(bits - 1) of them, then a code of `bits` bits
for each value: the number of its level, and above it the sign.

The bits of a float32 magnitude, read as an integer, are a piecewise linear logarithm.
Divided into some two thousand equal cells, they are a histogram of the magnitudes. If
there are enough levels, each cell with values gets one. Otherwise levels start as equal
runs of cells, uniform in the logarithm, and Lloyd's algorithm reduces the squared
error: each round moves a boundary to the middle between two levels, and a level to the
mean of the magnitudes between its boundaries.

Sums are integers, so that the order of summation does not matter. Means are rounded to
21 bits below the largest magnitude, so that sums with integers stay exact in float32.
Zeros and values that are not finite are coded as zero: if a list has any, the lowest
level is reserved for them.
"""

from math import ldexp
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.reference.bits import clean_from, pack_bits, unpack_bits
from thinwire.kernels.sections import check_length, check_spare

# A magnitude has 31 bits, so a cell has at most 2**20 of them: less than an octave.
CELL_BITS = 11
# Of boundaries, in all rounds together: 256 rounds for 8 levels, enough for 3 or 4 bits
# to settle, and never more than some 10 us.
MOVES = 1 << 11
INFINITY = 0x7F800000
MANTISSA = 0x7FFFFF
# A sum's unit is 2**-28 of the largest power of two in the list, a level's is 2**-20:
# 2**32 values of less than 2**29 units fit in 63 bits.
SUM_BITS, LEVEL_BITS = 28, 20

Counts = NDArray[np.int64]


class Cells(NamedTuple):
    """The number of values in each cell, and the sum of their magnitudes, in units."""

    counts: Counts
    sums: Counts
    first: int  # where cell 0 begins, in cells from 0.0 on
    shift: int  # the low bits of a magnitude that a cell leaves out
    exponent: int  # of the largest magnitude, biased as in a float32


@primitive
def encode_log(values: Tensor, bits: int) -> Tensor:
    """2**(bits - 1) levels as float32, then a level and a sign for each value.

    >>> import torch
    >>> section = encode_log(torch.tensor([1.0, -2.0, 4.0, 4.5]), 3)
    >>> section[:16].view(torch.float32).tolist(), section[16:].tolist()
    ([1.0, 2.0, 4.0, 4.5], [168, 6])
    """
    word = values.contiguous().view(torch.int32).long()
    magnitude = word & 0x7FFFFFFF
    coded = (magnitude > 0) & (magnitude < INFINITY)
    count = 1 << (bits - 1)
    levels = np.zeros(count, np.float32)
    numbers = torch.zeros_like(magnitude)
    lowest = int(not bool(coded.all()))
    if bool(coded.any()):
        kept = magnitude[coded]
        cells = _cells(kept)
        bounds = _boundaries(cells, count - lowest)
        levels[lowest:] = _levels(cells, bounds)
        places = torch.from_numpy(bounds[1:-1]).to(values.device) + cells.first
        above = torch.bucketize(kept >> cells.shift, places, right=True)
        numbers[coded] = lowest + above
    section = torch.from_numpy(levels).view(torch.uint8).to(values.device)
    signs = (word < 0).long() << (bits - 1)
    return torch.cat([section, pack_bits(numbers | signs, bits)])


@primitive
def decode_log(
    section: Tensor, nnz: int, bits: int, *, errors: Tensor | None = None
) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list.

    With `errors`, a device may set that flag instead of raising.
    """
    check_length(section, 8 * nbytes_log(nnz, bits))
    count = 1 << (bits - 1)
    levels = section[: 4 * count].view(torch.int32)
    finite = bool(((levels >= 0) & (levels < INFINITY)).all())
    check_levels(finite and bool((levels[1:] >= levels[:-1]).all()))
    magnitudes = levels.view(torch.float32)
    check_spare(clean_from(section[4 * count :], nnz * bits))
    codes = unpack_bits(section[4 * count :], nnz, bits)
    return torch.cat([magnitudes, -magnitudes])[codes]


def nbytes_log(nnz: int, bits: int) -> int:
    """The length of a section."""
    return 4 * (1 << (bits - 1)) + -(-nnz * bits // 8)


def check_levels(right: bool) -> None:  # noqa: FBT001
    """Refuse a codebook that no encoder writes."""
    if not right:
        raise ValueError("levels that are not finite and ascending from 0 on")


def _cells(magnitude: Tensor) -> Cells:
    low, high = int(magnitude.min()), int(magnitude.max())
    shift = max((high - low).bit_length() - CELL_BITS, 0)
    first = low >> shift
    cell = (magnitude >> shift) - first
    counts = torch.bincount(cell)
    rest = torch.zeros_like(counts).index_add_(0, cell, magnitude & ((1 << shift) - 1))
    # All magnitudes of a cell have one exponent, so they are whole numbers of one unit.
    start = (first + torch.arange(len(counts), device=cell.device)) << shift
    exponent = (start >> 23).clamp(min=1)
    significand = torch.where(start >> 23 > 0, start & MANTISSA | 1 << 23, start)
    largest = max(high >> 23, 1)
    sums = (counts * significand + rest) << (SUM_BITS - 23)
    sums >>= (largest - exponent).clamp(max=63)
    return Cells(counts.cpu().numpy(), sums.cpu().numpy(), first, shift, largest)


def _boundaries(cells: Cells, count: int) -> Counts:
    """Where levels begin, in cells; the first at 0, and the end of the last."""
    size = len(cells.counts)
    occupied = np.flatnonzero(cells.counts)
    if len(occupied) <= count:
        return np.concatenate([occupied, np.full(count + 1 - len(occupied), size)])
    bounds = (np.arange(count + 1) * size + count - 1) // count
    half = (1 << cells.shift) >> 1
    for _ in range(MOVES // count):
        sums, counts = _between(cells, bounds)
        means = np.zeros(count)
        np.divide(sums, counts, out=means, where=counts > 0)
        # A level without values stands at the one below, and takes half of it.
        means = np.maximum.accumulate(means)
        middles = (means[1:] + means[:-1]) * 0.5 * _unit(cells, SUM_BITS)
        bits = middles.astype(np.float32).view(np.int32).astype(np.int64)
        moved = bounds.copy()
        moved[1:-1] = np.clip(((bits + half) >> cells.shift) - cells.first, 1, size)
        if np.array_equal(moved, bounds):
            break
        bounds = moved
    return bounds


def _levels(cells: Cells, bounds: Counts) -> NDArray[np.float32]:
    sums, counts = _between(cells, bounds)
    scale = np.int64(1) << (SUM_BITS - LEVEL_BITS)
    whole = (sums + counts * (scale >> 1)) // np.maximum(counts * scale, 1)
    # Rounded up from below, the largest of all magnitudes would be infinite.
    whole = np.minimum(whole, (2 << LEVEL_BITS) - 1)
    levels = np.maximum.accumulate(whole) * _unit(cells, LEVEL_BITS)
    return levels.astype(np.float32)


def _between(cells: Cells, bounds: Counts) -> tuple[Counts, Counts]:
    sums = np.concatenate([[0], np.cumsum(cells.sums)])[bounds]
    counts = np.concatenate([[0], np.cumsum(cells.counts)])[bounds]
    return np.diff(sums), np.diff(counts)


def _unit(cells: Cells, places: int) -> float:
    return ldexp(1.0, cells.exponent - 127 - places)
