"""Sorted values as two curves, each a sum of two exponentials.

A section is, little endian: the number of positive values (u32); the number of negative
values (u32); a curve for the positive and one for the negative values, unless there are
none. The values in between are zero. A curve is four float64 numbers p, q, a and c, for
the magnitudes a p**i + c q**i, where i counts from the smallest magnitude; the powers
are multiplied up one by one. If p is zero there is no fit: the values follow as
float32, with zeros up to a multiple of eight bytes. If a value is not finite, all
values are sent this way, as if they were positive, and values that are not finite
become zero.

The fit is the integral equation of DeepReduce's Fit-DExp (Xu et al., NeurIPS 2021,
section 5; the regression is Jacquelin's). With S the integral of y from the smallest
magnitude to x, and SS that of S, a sum of two exponentials is y = A SS + B S + C x + D,
and the exponents are the solutions of t**2 = B t + A. They are found with x from 0 to 1
and y up to 1; p and q are the ratios of neighbours. Arithmetic is float64, one rounding
per operation; sums run from the smallest magnitude to the largest.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.dispatch import cpu_primitive
from thinwire.kernels.reference.poly import (
    check_descending,
    sequential_sum,
)
from thinwire.kernels.sections import check_finite, check_length

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FEWEST = 8
# The largest squared error of a fit, relative to the squared norm of the values.
LARGEST_ERROR = 0.25
# Enough for arguments up to 1/8.
EXP_TERMS = 13

_NO_FIT = bytes(8)


@cpu_primitive
def encode_dexp(values: Tensor) -> Tensor:
    """Encode descending values as a sum of two exponentials for each sign."""
    return encode_with(values, fit)


@cpu_primitive
def decode_dexp(section: Tensor, nnz: int) -> Tensor:
    """Decode `nnz` finite values; raises `ValueError` if the section is invalid.

    >>> import torch
    >>> decode_dexp(encode_dexp(torch.tensor([2.0, 0.0, -1.0])), 3).tolist()
    [2.0, 0.0, -1.0]
    """
    return decode_with(section, nnz, curve)


def fit(y: Floats) -> Doubles:
    """Fit p, q, a and c to ascending magnitudes; p is 0 if there is no good fit."""
    with np.errstate(all="ignore"):
        ratios = _ratios(y) if len(y) >= FEWEST else None
        if ratios is None:
            return np.zeros(4)
        fitted = np.array([*ratios, *_amplitudes(y, *ratios)])
        found = curve(fitted, len(y)).astype(np.float64)
        apart = sequential_sum((found - y) * (found - y))
        # Also false for NaN.
        good = apart <= LARGEST_ERROR * sequential_sum(y.astype(np.float64) ** 2)
        good = good and not (found < 0).any()
    return fitted if good else np.zeros(4)


def curve(fitted: Doubles, count: int) -> Floats:
    """Evaluate a curve from its smallest magnitude on; values may be invalid."""
    p, q, a, c = fitted
    with np.errstate(all="ignore"):
        y: Doubles = a * _powers(p, count) + c * _powers(q, count)
        return y.astype(np.float32)


def _ratios(y: Floats) -> tuple[float, float] | None:
    last = len(y) - 1
    scaled = y.astype(np.float64) / float(y.max())
    half = 1.0 / last / 2.0
    x = np.arange(len(y)) / float(last)
    integral = _integral(scaled, half)
    columns = [_integral(integral, half), integral, x, np.ones(len(y))]
    gram = np.array(
        [[sequential_sum(one * other) for other in columns] for one in columns]
    )
    right = np.array([sequential_sum(column * scaled) for column in columns])
    solve(gram, right)
    a, b, *_ = right.tolist()
    discriminant = b * b + 4.0 * a
    if not discriminant > 0:
        return None
    root = math.sqrt(discriminant)
    p, q = exp((b + root) / 2.0 / last), exp((b - root) / 2.0 / last)
    return (p, q) if 0 < p < math.inf and 0 < q < math.inf else None


def _integral(y: Doubles, half: float) -> Doubles:
    """The integral from the first point to each point, by the trapezoidal rule."""
    areas = (y[1:] + y[:-1]) * half
    return np.add.accumulate(np.concatenate([[0.0], areas]))


# Kernels for the CPU compile the next two functions.


def solve(rows: Doubles, right: Doubles) -> None:
    """Solve linear equations in place: `right` becomes the solution.

    By Gaussian elimination, with the largest pivot of each column.
    """
    count = len(right)
    for k in range(count):
        pivot = k
        for i in range(k + 1, count):
            if abs(rows[i, k]) > abs(rows[pivot, k]):
                pivot = i
        for j in range(count):
            rows[k, j], rows[pivot, j] = rows[pivot, j], rows[k, j]
        right[k], right[pivot] = right[pivot], right[k]
        for i in range(k + 1, count):
            factor = rows[i, k] / rows[k, k]
            for j in range(k, count):
                rows[i, j] -= factor * rows[k, j]
            right[i] -= factor * right[k]
    for k in range(count - 1, -1, -1):
        for j in range(k + 1, count):
            right[k] -= rows[k, j] * right[j]
        right[k] = right[k] / rows[k, k]


def exp(x: float) -> float:
    """e**x by its series, because the last bit of a library's differs by machine."""
    halvings = 0
    while 0.125 < abs(x) < math.inf:
        x /= 2.0
        halvings += 1
    result = 1.0
    for term in range(EXP_TERMS, 0, -1):
        result = result * x / term + 1.0
    for _ in range(halvings):
        result *= result
    return result


def _amplitudes(y: Floats, p: float, q: float) -> tuple[float, float]:
    """Fit the amplitudes a and c by least squares."""
    u, w = _powers(p, len(y)), _powers(q, len(y))
    uu, uw, ww = sequential_sum(u * u), sequential_sum(u * w), sequential_sum(w * w)
    uy, wy = sequential_sum(u * y), sequential_sum(w * y)
    determinant = np.float64(uu * ww - uw * uw)
    a, c = (uy * ww - wy * uw) / determinant, (wy * uu - uy * uw) / determinant
    return float(a), float(c)


def _powers(ratio: float, count: int) -> Doubles:
    factors = np.full(count, ratio)
    factors[:1] = 1.0
    return np.multiply.accumulate(factors)


def encode_with(values: Tensor, fit: Callable[[Floats], Doubles]) -> Tensor:
    """`encode_dexp` with this function for fitting."""
    listed = values.detach().contiguous().numpy()
    finite = np.isfinite(listed)
    if not bool(finite.all()):
        whole = np.where(finite, listed, np.float32(0))
        return _build_section(len(listed), 0, [_raw(whole)])
    positive, negative = int((listed > 0).sum()), int((listed < 0).sum())
    above, below = listed[:positive], listed[len(listed) - negative :]
    check_descending(bool((above > 0).all()) and bool((below < 0).all()))
    parts = []
    for side, magnitudes in ((above, above[::-1].copy()), (below, -below)):
        if len(side):
            fitted = fit(magnitudes)
            parts.append(fitted.tobytes() if fitted[0] > 0 else _raw(side))
    return _build_section(positive, negative, parts)


def decode_with(
    section: Tensor, nnz: int, curve: Callable[[Doubles, int], Floats]
) -> Tensor:
    """`decode_dexp` with this function for evaluating curves."""
    octets = section.contiguous().numpy()
    positive, negative = _counts(octets, nnz)
    values = np.zeros(nnz, np.float32)
    at = 8
    for count, sign in ((positive, 1), (negative, -1)):
        place = values[:count] if sign > 0 else values[nnz - count :]
        fitted = octets[at : at + 32]
        if count == 0:
            continue
        if fitted[:8].any():
            _check_room(octets, at + 32)
            at += 32
            magnitudes = _magnitudes(fitted.view(np.float64), count, curve)
            place[:] = magnitudes[::-1] if sign > 0 else -magnitudes
        else:
            end = at + 8 + 4 * count
            _check_room(octets, end)
            place[:] = octets[at + 8 : end].view(np.float32)
            at = -(-end // 8) * 8
            _check_zeros(octets[end:at])
    check_length(section, 8 * at)
    check_finite(bool(np.isfinite(values).all()))
    return torch.from_numpy(values)


def _magnitudes(
    fitted: Doubles, count: int, curve: Callable[[Doubles, int], Floats]
) -> Floats:
    p, q = fitted[:2].tolist()
    if not (0 < p < math.inf and 0 < q < math.inf):
        raise ValueError(f"ratios {p} and {q} that are not finite and above 0")
    magnitudes = curve(fitted, count)
    if bool((magnitudes < 0).any()):
        raise ValueError("a magnitude below 0")
    return magnitudes


def _raw(values: Floats) -> bytes:
    octets = values.tobytes()
    return _NO_FIT + octets + bytes(-len(octets) % 8)


def _build_section(positive: int, negative: int, parts: list[bytes]) -> Tensor:
    counts = np.array([positive, negative], "<u4").tobytes()
    return torch.frombuffer(bytearray(counts + b"".join(parts)), dtype=torch.uint8)


def _counts(octets: NDArray[np.uint8], nnz: int) -> tuple[int, int]:
    _check_room(octets, 8)
    positive, negative = octets[:8].view("<u4").tolist()
    if positive + negative > nnz:
        raise ValueError(f"{positive} positive, {negative} negative values of {nnz}")
    return positive, negative


def _check_room(octets: NDArray[np.uint8], end: int) -> None:
    if len(octets) < end:
        raise ValueError(f"{len(octets)} bytes where {end} are read")


def _check_zeros(octets: NDArray[np.uint8]) -> None:
    if octets.any():
        raise ValueError("bytes that are set where zeros fill up a word")
