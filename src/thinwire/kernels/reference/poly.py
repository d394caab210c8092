"""Sorted values as polynomials, one for each of a few pieces of the list.

A section is, little endian: the number of pieces (u32); the length of each piece (u32);
the number of its coefficients (u8; 0: all values are zero, 255: the values follow
unchanged); zeros up to a multiple of four bytes; then the coefficients, lowest power
first, or the values of each piece, as float32.

A piece of n values is a polynomial in x = (2 i - n + 1) / (n - 1), from -1 to 1. It is
fitted by least squares in the polynomials that are orthogonal on these n points (the
discrete Legendre or Gram polynomials), so no equations have to be solved. Sums run from
the first value to the last. Arithmetic is float64, one rounding per operation.

Values descend; values that are not finite come first or last and count as zero. The
first pieces are: not finite, positive, zero, negative, not finite. Then the piece whose
values are furthest from its chord is split at the furthest value, until there are
enough pieces (DeepReduce, Xu et al., NeurIPS 2021, section 5).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.dispatch import cpu_primitive
from thinwire.kernels.sections import check_finite, check_length

Doubles = NDArray[np.float64]
Pieces = list[tuple[int, int]]

RAW = 255
MOST_COEFFICIENTS = 16
# Values for every piece: a piece costs 29 bytes with a quintic, 7 bits a value.
VALUES_PER_PIECE = 32


@cpu_primitive
def encode_poly(values: Tensor, degree: int, pieces: int) -> Tensor:
    """Encode descending values as a polynomial for each of up to `pieces` pieces."""
    listed = values.detach().numpy()
    found = _cut(listed, pieces, least=degree + 3)
    counts, data = [], []
    for start, end in found:
        count, numbers = _encode_piece(listed[start:end], degree)
        counts.append(count)
        data.append(numbers)
    lengths = np.array([end - start for start, end in found], np.int64)
    joined = np.concatenate([*data, np.empty(0, np.float32)])
    return build_section(lengths, np.array(counts, np.uint8), joined)


@cpu_primitive
def decode_poly(section: Tensor, nnz: int) -> Tensor:
    """Decode `nnz` finite values; raises `ValueError` if the section is invalid.

    >>> import torch
    >>> decode_poly(encode_poly(torch.arange(4.0, -5.0, -1.0), 1, 8), 9).tolist()
    [4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0]
    """
    lengths, counts, data = parse_section(section, nnz)
    parts = [np.empty(0, np.float32)]
    at = 0
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        width = length if count == RAW else count
        numbers = data[at : at + width]
        parts.append(numbers if count == RAW else _curve(numbers, length))
        at += width
    values = np.concatenate(parts)
    check_finite(bool(np.isfinite(values).all()))
    return torch.from_numpy(values)


def _cut(values: NDArray[np.float32], pieces: int, least: int) -> Pieces:
    found = _pieces_by_kind(values)
    most = max(min(pieces, len(values) // VALUES_PER_PIECE), 0)
    while len(found) < most:
        strayed = [
            _furthest_from_chord(values, start, end, least) for start, end in found
        ]
        furthest = max(range(len(found)), key=lambda i: strayed[i][0])
        far, knot = strayed[furthest]
        if not far > 0:
            break
        start, end = found[furthest]
        found[furthest : furthest + 1] = [(start, knot), (knot, end)]
    return found


def _pieces_by_kind(values: NDArray[np.float32]) -> Pieces:
    """The (start, end) of the values of each kind."""
    finite = np.isfinite(values)
    kinds = [~finite, finite & (values > 0), finite & (values == 0)]
    kinds += [finite & (values < 0), ~finite]
    runs = []
    start = 0
    for kind in kinds:
        others = np.flatnonzero(~kind[start:])
        end = start + int(others[0]) if len(others) else len(values)
        if end > start:
            runs.append((start, end))
        start = end
    check_descending(start == len(values))
    return runs


def _furthest_from_chord(
    values: NDArray[np.float32], start: int, end: int, least: int
) -> tuple[float, int]:
    """The largest distance of values from their chord, and where to split the piece.

    The split leaves at least `least` values on either side.
    """
    y = values[start:end].astype(np.float64)
    if end - start < 2 * least or not np.isfinite(y[0]) or y[0] == 0:
        return 0.0, start
    width = float(end - start - 1)
    apart = np.abs((y - y[0]) * width - (y[-1] - y[0]) * np.arange(end - start))
    furthest = int(apart.argmax())
    knot = min(max(start + furthest, start + least), end - least)
    return float(apart[furthest] / width), knot


def _encode_piece(
    values: NDArray[np.float32], degree: int
) -> tuple[int, NDArray[np.float32]]:
    if not np.isfinite(values[0]) or values[0] == 0:
        return 0, np.empty(0, np.float32)
    if len(values) > degree + 1:
        with np.errstate(over="ignore"):
            coefficients = _fitted(values.astype(np.float64), degree)
        # The polynomial may cross zero, but decoding must not change a sign.
        found = _curve(coefficients, len(values))
        if np.isfinite(found).all() and not (found * np.sign(values[0]) < 0).any():
            return degree + 1, coefficients
    return RAW, values


def _fitted(y: Doubles, degree: int) -> NDArray[np.float32]:
    """Fit the coefficients of powers of x by least squares."""
    last = len(y) - 1
    x = _abscissas(len(y))
    square = float(len(y))  # the sum of the squares of a polynomial's values
    before, now = np.zeros(len(y)), np.ones(len(y))
    powers_before, powers = np.zeros(degree + 1), np.zeros(degree + 1)
    powers[0] = 1.0
    fitted = np.zeros(degree + 1)
    for k in range(degree + 1):
        share = sequential_sum(y * now) / square
        fitted += share * powers
        ahead = float((2 * k + 1) * last) / float((k + 1) * (last - k))
        behind = float(k * (last + k + 1)) / float((k + 1) * (last - k))
        before, now = now, ahead * x * now - behind * before
        raised = np.concatenate([[0.0], powers[:-1]])
        powers_before, powers = powers, ahead * raised - behind * powers_before
        grows = float((2 * k + 1) * (last + k + 2)), float((2 * k + 3) * (last - k))
        square = square * grows[0] / grows[1]
    return fitted.astype(np.float32)


def _curve(coefficients: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    x = _abscissas(length)
    y = np.zeros(length)
    with np.errstate(over="ignore", invalid="ignore"):
        for coefficient in coefficients[::-1].astype(np.float64):
            y = y * x + coefficient
        return y.astype(np.float32)


def _abscissas(length: int) -> Doubles:
    places: Doubles = (2.0 * np.arange(length) - (length - 1)) / max(length - 1, 1)
    return places


def sequential_sum(numbers: Doubles) -> float:
    """The sum in the order of the numbers; `np.sum` uses another order."""
    return float(np.add.accumulate(np.concatenate([[0.0], numbers]))[-1])


def build_section(
    lengths: NDArray[np.int64], counts: NDArray[np.uint8], data: NDArray[np.float32]
) -> Tensor:
    """Join the lengths, the numbers of coefficients and the data to a section."""
    table = 4 + 5 * len(lengths)
    section = np.zeros(_padded(table) + 4 * len(data), np.uint8)
    section[:4] = np.array([len(lengths)], "<u4").view(np.uint8)
    section[4 : 4 + 4 * len(lengths)] = lengths.astype("<u4").view(np.uint8)
    section[4 + 4 * len(lengths) : table] = counts
    section[_padded(table) :] = data.view(np.uint8)
    return torch.from_numpy(section)


def parse_section(
    section: Tensor, nnz: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float32]]:
    """Split a section into lengths, numbers of coefficients and data.

    Raises `ValueError` if it is invalid, but does not check the data.
    """
    octets = section.contiguous().numpy()
    pieces = int(octets[:4].view("<u4")[0]) if len(octets) >= 4 else 0
    table = 4 + 5 * pieces
    if len(octets) < table:
        raise ValueError(f"{pieces} pieces in {len(octets)} bytes")
    lengths = octets[4 : 4 + 4 * pieces].view("<u4").astype(np.int64)
    counts: Any = octets[4 + 4 * pieces : table]
    if not bool(lengths.all()):
        raise ValueError("a piece of no values")
    if int(lengths.sum()) != nnz:
        raise ValueError(f"pieces of {int(lengths.sum())} values, not {nnz}")
    raw = counts == RAW
    if bool((~raw & (counts > MOST_COEFFICIENTS)).any()):
        raise ValueError(f"more than {MOST_COEFFICIENTS} coefficients")
    start = _padded(table)
    end = start + 4 * int(np.where(raw, lengths, counts).sum())
    check_length(section, 8 * end)
    if bool(octets[table:start].any()) or bool(octets[end:].any()):
        raise ValueError("bytes that are set where zeros fill up a word")
    return lengths, counts, octets[start:end].view(np.float32)


def check_descending(all_in_order: bool) -> None:  # noqa: FBT001
    """Raise `ValueError` if values to encode are not in descending order."""
    if not all_in_order:
        raise ValueError("values that do not descend")


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4
