"""Values as random multiples of a bucket's norm: 4 ns a value, 1 to decode.

`reference.qsgd` describes the format.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Floats, Octets
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.random_words import random_word
from thinwire.kernels.random_words import mixed
from thinwire.kernels.reference.qsgd import (
    check_norms,
    check_numbers,
    nbytes_qsgd,
    number_dtype,
    shortened,
)
from thinwire.kernels.sections import check_length

Numbers = NDArray[Any]

# Squares are added in the order of the values, and each addition waits for the one
# before. This many buckets are added at once.
_TOGETHER = 4
_LARGEST = np.finfo(np.float32).max
_INFINITY = np.float32(np.inf)


def encode_qsgd(values: Tensor, levels: int, bucket: int, key: int) -> Tensor:
    bucket = shortened(bucket, len(values))
    section = torch.empty(nbytes_qsgd(len(values), levels, bucket), dtype=torch.uint8)
    norms, numbers = _parts(section.numpy(), len(values), levels, bucket)
    given = values.contiguous().numpy()
    _norms(given, bucket, norms)
    seed = np.uint64(mixed(key))
    _encode(given, levels, bucket, seed, norms, numbers)
    return section


def decode_qsgd(section: Tensor, nnz: int, levels: int, bucket: int) -> Tensor:
    bucket = shortened(bucket, nnz)
    check_length(section, 8 * nbytes_qsgd(nnz, levels, bucket))
    octets = section.contiguous().numpy()[: nbytes_qsgd(nnz, levels, bucket)]
    norms, numbers = _parts(octets, nnz, levels, bucket)
    values = torch.empty(nnz)
    norm, number = _decode(norms, numbers, levels, bucket, values.numpy())
    check_norms(norm)
    check_numbers(number, levels)
    return values


def _parts(
    section: Octets, nnz: int, levels: int, bucket: int
) -> tuple[Floats, Numbers]:
    ends = 4 * -(-nnz // bucket)
    numbers = np.int8 if number_dtype(levels) == torch.int8 else np.int16
    return section[:ends].view(np.float32), section[ends:].view(numbers)


@part
def _square(value: Any) -> Any:
    wide = np.float64(value)
    return wide * wide if abs(value) < _INFINITY else 0.0


@kernel
def _norms(values: Floats, bucket: int, norms: Floats) -> None:
    done = len(values) // (_TOGETHER * bucket) * _TOGETHER
    for b in range(0, done, _TOGETHER):
        sum0 = sum1 = sum2 = sum3 = 0.0
        start = b * bucket
        for i in range(start, start + bucket):
            sum0 += _square(values[i])
            sum1 += _square(values[i + bucket])
            sum2 += _square(values[i + 2 * bucket])
            sum3 += _square(values[i + 3 * bucket])
        norms[b] = min(np.sqrt(sum0), _LARGEST)
        norms[b + 1] = min(np.sqrt(sum1), _LARGEST)
        norms[b + 2] = min(np.sqrt(sum2), _LARGEST)
        norms[b + 3] = min(np.sqrt(sum3), _LARGEST)
    for b in range(done, len(norms)):
        total = 0.0
        for i in range(b * bucket, min((b + 1) * bucket, len(values))):
            total += _square(values[i])
        norms[b] = min(np.sqrt(total), _LARGEST)


@part
def _draw(seed: Any, place: int) -> Any:
    word = random_word(seed, place)
    return np.float64(np.int32(word >> np.uint64(33))) * 2.0**-31


@kernel
def _encode(
    values: Floats, levels: int, bucket: int, seed: Any, norms: Floats, numbers: Numbers
) -> None:
    for b in range(len(norms)):
        norm = np.float64(norms[b]) if norms[b] > 0 else 1.0
        for i in range(b * bucket, min((b + 1) * bucket, len(values))):
            magnitude = np.float64(abs(values[i]))
            finite = magnitude if magnitude < _INFINITY else 0.0
            steps = finite * np.float64(levels) / norm
            whole = np.int32(steps)
            up = _draw(seed, i) < steps - np.float64(whole)
            number = whole + np.int32(up)
            numbers[i] = -number if values[i] < 0 else number


@kernel
def _decode(
    norms: Floats, numbers: Numbers, levels: int, bucket: int, values: Floats
) -> Any:
    """Decode to `values`; returns whether a norm, and whether a number, is invalid."""
    least = most = np.int32(0)
    wrong = False
    for b in range(len(norms)):
        wrong |= not 0 <= norms[b] < _INFINITY
        wrong |= np.signbit(norms[b])
        unit = np.float64(norms[b]) / np.float64(levels)
        for i in range(b * bucket, min((b + 1) * bucket, len(values))):
            number = np.int32(numbers[i])
            least = min(least, number)
            most = max(most, number)
            values[i] = np.float32(unit * np.float64(number))
    return wrong, least < -levels or most > levels
