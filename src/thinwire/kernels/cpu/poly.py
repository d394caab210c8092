"""Sorted values as polynomials: 15 ns a value to fit, 2 ns to evaluate.

`reference.poly` describes the format and the fit.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Floats, Octets
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.reference.poly import (
    RAW,
    VALUES_PER_PIECE,
    build_section,
    check_descending,
    parse_section,
)
from thinwire.kernels.sections import check_finite

Lengths = NDArray[np.int64]

_RUNS = 5
_BATCH = 256


def encode_poly(values: Tensor, degree: int, pieces: int) -> Tensor:
    listed = values.detach().contiguous().numpy()
    most = min(pieces, len(listed) // VALUES_PER_PIECE)
    ends = np.zeros(max(most, _RUNS), np.int64)
    count = _cut(listed, most, degree + 3, ends)
    check_descending(count >= 0)
    counts = np.zeros(count, np.uint8)
    data = np.empty(len(listed) + count * (degree + 1), np.float32)
    used = _encode_pieces(listed, ends[:count], degree, counts, data)
    return build_section(np.diff(ends[:count], prepend=0), counts, data[:used])


def decode_poly(section: Tensor, nnz: int) -> Tensor:
    lengths, counts, data = parse_section(section, nnz)
    values = torch.empty(nnz)
    check_finite(_evaluate(lengths, counts, data, values.numpy()))
    return values


@part
def _kind(value: Any) -> int:
    if not np.isfinite(value) or value == 0:
        return 0
    return 1 if value > 0 else -1


@part
def _pieces_by_kind(values: Floats, ends: Lengths) -> int:
    """Write where the values of each kind end to `ends`; returns the number of kinds.

    Returns -1 if the kinds are not in their order.
    """
    count = 0
    at = 0
    for kind in range(_RUNS):
        start = at
        while at < len(values):
            value = values[at]
            if kind in (0, 4):
                fits = not np.isfinite(value)
            elif kind == 2:
                fits = value == 0
            else:
                fits = _kind(value) == 2 - kind
            if not fits:
                break
            at += 1
        if at > start:
            ends[count] = at
            count += 1
    return count if at == len(values) else -1


@part
def _furthest_from_chord(
    values: Floats, start: int, end: int, least: int
) -> tuple[float, int]:
    """See the reference."""
    if end - start < 2 * least or _kind(values[start]) == 0:
        return 0.0, start
    first = np.float64(values[start])
    rise = np.float64(values[end - 1]) - first
    width = np.float64(end - start - 1)
    furthest = start
    most = 0.0
    for i in range(start, end):
        apart = abs((np.float64(values[i]) - first) * width - rise * (i - start))
        if apart > most:
            most = apart
            furthest = i
    return most / width, min(max(furthest, start + least), end - least)


@kernel
@allocating
def _cut(values: Floats, most: int, least: int, ends: Lengths) -> int:
    """Write where pieces end to `ends`; returns the number of pieces."""
    count: int = _pieces_by_kind(values, ends)
    strayed = np.zeros(len(ends))
    knots = np.zeros(len(ends), np.int64)
    start = 0
    for i in range(count):
        strayed[i], knots[i] = _furthest_from_chord(values, start, ends[i], least)
        start = ends[i]
    while 0 < count < most:
        furthest = 0
        for i in range(1, count):
            if strayed[i] > strayed[furthest]:
                furthest = i
        if not strayed[furthest] > 0:
            break
        for i in range(count, furthest, -1):
            ends[i] = ends[i - 1]
            strayed[i] = strayed[i - 1]
            knots[i] = knots[i - 1]
        ends[furthest] = knots[furthest]
        count += 1
        for i in range(furthest, furthest + 2):
            start = 0 if i == 0 else ends[i - 1]
            strayed[i], knots[i] = _furthest_from_chord(values, start, ends[i], least)
    return count


@kernel
@allocating
def _encode_pieces(
    values: Floats, ends: Lengths, degree: int, counts: Octets, data: Floats
) -> int:
    """Write coefficients or values of each piece to `data`; returns how many."""
    used = 0
    start = 0
    for i in range(len(ends)):
        piece = values[start : ends[i]]
        start = ends[i]
        if _kind(piece[0]) == 0:
            continue
        if len(piece) > degree + 1:
            coefficients = data[used : used + degree + 1]
            _fit(piece, coefficients)
            found = np.empty(len(piece), np.float32)
            if _curve(coefficients, found) and not _changes_sign(found, piece[0]):
                counts[i] = degree + 1
                used += degree + 1
                continue
        counts[i] = RAW
        data[used : used + len(piece)] = piece
        used += len(piece)
    return used


@part
def _changes_sign(values: Floats, first: Any) -> bool:
    """Whether a value has another sign than `first`."""
    below = above = False
    for i in range(len(values)):
        below |= values[i] < 0
        above |= values[i] > 0
    return below if first > 0 else above


@part
@allocating
def _fit(values: Floats, coefficients: Floats) -> None:
    """Write the coefficients of the least-squares polynomial; see the reference."""
    terms = len(coefficients)
    last = len(values) - 1
    ahead = np.empty(terms)
    behind = np.empty(terms)
    for k in range(terms):
        below = np.float64((k + 1) * (last - k))
        ahead[k] = np.float64((2 * k + 1) * last) / below
        behind[k] = np.float64(k * (last + k + 1)) / below
    sums = np.zeros(terms)
    for i in range(len(values)):
        x = np.float64(2 * i - last) / np.float64(last)
        y = np.float64(values[i])
        before = 0.0
        now = 1.0
        for k in range(terms):
            sums[k] += y * now
            after = ahead[k] * x * now - behind[k] * before
            before = now
            now = after
    square = np.float64(len(values))
    fitted = np.zeros(terms)
    powers_before = np.zeros(terms)
    powers = np.zeros(terms)
    powers[0] = 1.0
    for k in range(terms):
        share = sums[k] / square
        for j in range(terms):
            fitted[j] += share * powers[j]
        for j in range(terms - 1, -1, -1):
            raised = powers[j - 1] if j > 0 else 0.0
            after = ahead[k] * raised - behind[k] * powers_before[j]
            powers_before[j] = powers[j]
            powers[j] = after
        above = np.float64((2 * k + 1) * (last + k + 2))
        square = square * above / np.float64((2 * k + 3) * (last - k))
    for j in range(terms):
        coefficients[j] = fitted[j]


@part
@allocating
def _curve(coefficients: Floats, values: Floats) -> bool:
    """Evaluate by Horner's rule; returns whether all values are finite."""
    last = len(values) - 1
    x = np.empty(_BATCH)
    y = np.empty(_BATCH)
    wrong = False
    for start in range(0, len(values), _BATCH):
        count = min(_BATCH, len(values) - start)
        for t in range(count):
            x[t] = np.float64(2 * (start + t) - last) / np.float64(max(last, 1))
            y[t] = 0.0
        for j in range(len(coefficients) - 1, -1, -1):
            coefficient = np.float64(coefficients[j])
            for t in range(count):
                y[t] = y[t] * x[t] + coefficient
        for t in range(count):
            value = np.float32(y[t])
            values[start + t] = value
            wrong |= not np.isfinite(value)
    return not wrong


@kernel
@allocating
def _evaluate(lengths: Lengths, counts: Octets, data: Floats, values: Floats) -> bool:
    """Evaluate every piece; returns whether all values are finite."""
    finite = True
    at = 0
    start = 0
    for i in range(len(lengths)):
        piece = values[start : start + lengths[i]]
        start += lengths[i]
        if counts[i] == RAW:
            piece[:] = data[at : at + len(piece)]
            at += len(piece)
            for t in range(len(piece)):
                finite &= np.isfinite(piece[t])
        else:
            finite &= _curve(data[at : at + counts[i]], piece)
            at += counts[i]
    return finite
