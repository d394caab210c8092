"""Float32 values in 16 bits each, rounded with integer arithmetic.

Libraries agree on the nearest value, but not on values that are too large and on the
bits of NaN.
"""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


@primitive
def to_bfloat16(values: Tensor) -> Tensor:
    """The nearest bfloat16, ties to even; finite values stay finite.

    >>> import torch
    >>> to_bfloat16(torch.tensor([1.005, -3.4e38, float("-inf")])).tolist()
    [1.0078125, -3.3895313892515355e+38, -inf]
    """
    bits, sign = _parts(values)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = _special(bits, rounded.clamp(max=0x7F7F), bits >> 16 | 0x40, 0x7F80)
    return (rounded | sign).to(torch.int16).view(torch.bfloat16)


@primitive
def to_float16(values: Tensor) -> Tensor:
    """The nearest IEEE half, ties to even; finite values stay finite.

    >>> import torch
    >>> to_float16(torch.tensor([1.0003, 1e6, float("inf")])).tolist()
    [1.0, 65504.0, inf]
    """
    bits, sign = _parts(values)
    # Ten bits of mantissa remain, fewer below the smallest normal number, 2**-14, of
    # which no more than half a unit is left from 2**-25 on.
    lost = (126 - (bits >> 23)).clamp(13, 25)
    normal = bits >= 113 << 23
    whole = torch.where(normal, bits - (112 << 23), bits & 0x7FFFFF | 0x800000)
    odd = (whole >> lost) & 1
    rounded = (whole + (torch.ones_like(lost) << (lost - 1)) - 1 + odd) >> lost
    quiet = 0x7E00 | (bits >> 13) & 0x3FF
    rounded = _special(bits, rounded.clamp(max=0x7BFF), quiet, 0x7C00)
    return (rounded | sign).to(torch.int16).view(torch.float16)


def _parts(values: Tensor) -> tuple[Tensor, Tensor]:
    bits = values.contiguous().view(torch.int32).long()
    return bits & _MAGNITUDE, (bits >> 16) & 0x8000


def _special(bits: Tensor, finite: Tensor, quiet: Tensor, infinity: int) -> Tensor:
    found = torch.where(bits == _INFINITY, infinity, quiet)
    return torch.where(bits < _INFINITY, finite, found)
