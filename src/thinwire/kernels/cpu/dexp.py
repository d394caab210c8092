"""Sorted values as sums of exponentials: 17 ns a value to fit, 3 ns to evaluate.

`reference.dexp` describes the format and the fit.
"""

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.arrays import Doubles, Floats
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.reference import dexp as reference
from thinwire.kernels.reference.dexp import (
    FEWEST,
    LARGEST_ERROR,
    decode_with,
    encode_with,
)

_solve = part(reference.solve)
_exp = part(reference.exp)


def encode_dexp(values: Tensor) -> Tensor:
    return encode_with(values, fit)


def decode_dexp(section: Tensor, nnz: int) -> Tensor:
    return decode_with(section, nnz, curve)


def fit(y: Floats) -> Doubles:
    """Fit p, q, a and c to ascending magnitudes; p is 0 if there is no good fit."""
    fitted = np.zeros(4)
    _fit(y, fitted)
    return fitted


def curve(fitted: Doubles, count: int) -> Floats:
    """Evaluate a curve from its smallest magnitude on; values may be invalid."""
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
    if len(y) < FEWEST:
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
    # Also true for NaN.
    if below or not apart <= LARGEST_ERROR * whole:
        fitted[:] = 0.0


@part
@allocating
def _ratios(y: Floats) -> tuple[float, float]:
    """The ratios p and q of neighbouring values; 0 if there is no real solution."""
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
def _amplitudes(y: Floats, fitted: Doubles) -> None:
    """Write the amplitudes a and c, fitted by least squares, to `fitted`."""
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
