"""Sorted values as sums of exponentials: 17 ns a value to fit, 3 ns to evaluate.

`reference.dexp` explains the fit and writes and reads sections; here are its loops over
values.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.reference.dexp import decoded, encoded

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_FEWEST = 8
_LARGEST_ERROR = 0.25
_EXP_TERMS = 13


def encode_dexp(values: Tensor) -> Tensor:
    return encoded(values, fit)


def decode_dexp(section: Tensor, nnz: int) -> Tensor:
    return decoded(section, nnz, curve)


def fit(y: Floats) -> Doubles:
    """p, q, a and c for magnitudes, smallest first; p is 0 where there is no fit."""
    fitted = np.zeros(4)
    _fit(y, fitted)
    return fitted


def curve(fitted: Doubles, count: int) -> Floats:
    """What should be magnitudes, smallest first; they may come out as anything."""
    y = np.empty(count, np.float32)
    _evaluate(fitted, y)
    return y


@kernel
def _evaluate(fitted: Doubles, y: Floats) -> None:
    p = fitted[0]
    q = fitted[1]
    u = 1.0
    w = 1.0
    for i in range(len(y)):
        y[i] = fitted[2] * u + fitted[3] * w
        u *= p
        w *= q


@kernel
@allocating
def _fit(y: Floats, fitted: Doubles) -> None:
    if len(y) < _FEWEST:
        return
    p, q = _ratios(y)
    if not (0 < p < np.inf and 0 < q < np.inf):
        return
    fitted[0] = p
    fitted[1] = q
    _amplitudes(y, fitted)
    found = np.empty_like(y)
    _evaluate(fitted, found)
    apart = 0.0
    whole = 0.0
    below = False
    for i in range(len(y)):
        value = np.float64(y[i])
        below |= found[i] < 0
        error = np.float64(found[i]) - value
        apart += error * error
        whole += value * value
    # False as well where something is not a number.
    if below or not apart <= _LARGEST_ERROR * whole:
        fitted[:] = 0.0


@part
@allocating
def _ratios(y: Floats) -> tuple[float, float]:
    """What neighbours grow by; 0 where they are no exponentials."""
    last = len(y) - 1
    scale = np.float64(y.max())
    half = 1.0 / last / 2.0
    rows = np.zeros((4, 4))
    right = np.zeros(4)
    columns = np.zeros(4)
    columns[3] = 1.0
    scaled = 0.0
    for i in range(len(y)):
        before = scaled
        scaled = np.float64(y[i]) / scale
        columns[2] = i / np.float64(last)
        if i > 0:
            integral = columns[1]
            columns[1] += (scaled + before) * half
            columns[0] += (columns[1] + integral) * half
        for r in range(4):
            right[r] += columns[r] * scaled
            for c in range(r + 1):
                rows[r, c] += columns[r] * columns[c]
    for r in range(4):
        for c in range(r + 1, 4):
            rows[r, c] = rows[c, r]
    _solve(rows, right)
    a = right[0]
    b = right[1]
    discriminant = b * b + 4.0 * a
    if not discriminant > 0:
        return 0.0, 0.0
    root = np.sqrt(discriminant)
    return _exp((b + root) / 2.0 / last), _exp((b - root) / 2.0 / last)


@part
def _solve(rows: Doubles, right: Doubles) -> None:
    """Gaussian elimination, by the largest pivot of each column."""
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


@kernel
def _exp(x: float) -> float:
    """e**x by its series, the same on every machine: a library's last bit is not."""
    halvings = 0
    while 0.125 < abs(x) < np.inf:
        x /= 2.0
        halvings += 1
    result = 1.0
    for term in range(_EXP_TERMS, 0, -1):
        result = result * x / term + 1.0
    for _ in range(halvings):
        result *= result
    return result


@part
def _amplitudes(y: Floats, fitted: Doubles) -> None:
    """Least squares for the amplitudes, by Cramer's rule."""
    u = 1.0
    w = 1.0
    uu = 0.0
    uw = 0.0
    ww = 0.0
    uy = 0.0
    wy = 0.0
    for i in range(len(y)):
        value = np.float64(y[i])
        uu += u * u
        uw += u * w
        ww += w * w
        uy += u * value
        wy += w * value
        u *= fitted[0]
        w *= fitted[1]
    determinant = uu * ww - uw * uw
    fitted[2] = (uy * ww - wy * uw) / determinant
    fitted[3] = (wy * uu - uy * uw) / determinant
