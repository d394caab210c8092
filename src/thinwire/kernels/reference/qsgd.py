"""Values as random multiples of a bucket's norm, unbiased.

First the L2 norm of each bucket as float32, then a whole number for each value, int8
or, from 128 levels on, int16. A value in a bucket of norm N lies between two multiples
of N / levels, and is rounded up with a probability equal to the fraction. The scheme is
QSGD's (Alistarh et al., NeurIPS 2017, section 3.1), with buckets as in DeepReduce.

A norm that float32 cannot hold is cut to its largest value, which no value exceeds;
what is not finite counts as zero.
"""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.random_words import mixed
from thinwire.kernels.reference.random_words import random_words, shifted
from thinwire.kernels.sections import check_length

LARGEST = 0x7F7FFFFF  # the bits of the largest finite float32

_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@primitive
def encode_qsgd(values: Tensor, levels: int, bucket: int, key: int) -> Tensor:
    """The L2 norm of each bucket, then values as random multiples of norm / levels.

    `key` and the index of a value determine how it is rounded.

    >>> import torch
    >>> section = encode_qsgd(torch.tensor([3.0, -4.0, 0.0, 12.0]), 127, 512, key=1)
    >>> section[:4].view(torch.float32).item(), section[4:].view(torch.int8).tolist()
    (13.0, [29, -39, 0, 117])
    """
    count = len(values)
    bucket = shortened(bucket, count)
    buckets = -(-count // bucket)
    table = torch.zeros(buckets, bucket, dtype=torch.float64, device=values.device)
    table.view(-1)[:count] = torch.where(values.isfinite(), values, 0.0)
    squares = torch.zeros(buckets, dtype=torch.float64, device=values.device)
    for place in range(bucket):
        squares += table[:, place] * table[:, place]
    norms = squares.sqrt().clamp(max=torch.finfo(torch.float32).max).float()
    divisor = norms.where(norms > 0, 1.0).double()[:, None]
    steps = (table.abs() * levels / divisor).view(-1)[:count]
    whole = steps.floor()
    up = draws(count, key, values.device) < steps - whole
    numbers = (whole + up.double()).copysign(table.view(-1)[:count])
    coded = numbers.to(number_dtype(levels))
    return torch.cat([norms.view(torch.uint8), coded.view(torch.uint8)])


@primitive
def decode_qsgd(section: Tensor, nnz: int, levels: int, bucket: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    bucket = shortened(bucket, nnz)
    check_length(section, 8 * nbytes_qsgd(nnz, levels, bucket))
    section = section[: nbytes_qsgd(nnz, levels, bucket)]
    ends = 4 * -(-nnz // bucket)
    norms = section[:ends].view(torch.int32)
    check_norms(bool(((norms < 0) | (norms > LARGEST)).any()))
    numbers = section[ends:].view(number_dtype(levels)).long()
    check_numbers(bool((numbers.abs() > levels).any()), levels)
    # A tensor, because some devices multiply by the reciprocal of a number.
    parts = torch.tensor(levels, dtype=torch.float64, device=section.device)
    units = norms.view(torch.float32).double() / parts
    return (units.repeat_interleave(bucket)[:nnz] * numbers).float()


def nbytes_qsgd(nnz: int, levels: int, bucket: int) -> int:
    """The length of a section."""
    return 4 * -(-nnz // bucket) + nnz * number_dtype(levels).itemsize


def shortened(bucket: int, count: int) -> int:
    """A bucket no longer than a list of `count` values."""
    return min(bucket, max(count, 1))


def number_dtype(levels: int) -> torch.dtype:
    """The type of integers from `-levels` to `levels`."""
    return torch.int8 if levels <= 127 else torch.int16


def check_norms(wrong: bool) -> None:  # noqa: FBT001
    """Refuse norms that no encoder writes."""
    if wrong:
        raise ValueError("a norm that is negative or not finite")


def check_numbers(wrong: bool, levels: int) -> None:  # noqa: FBT001
    """Refuse multiples beyond the norm."""
    if wrong:
        raise ValueError(f"a value beyond {levels} levels")


def draws(count: int, key: int, device: torch.device) -> Tensor:
    """Multiples of 2**-31 from 0 to below 1: the upper bits of each random word."""
    words = random_words(mixed(key), torch.arange(count, device=device))
    return shifted(words, 33).double() * 2.0**-31
