"""Values in 8 bits, a scale for every 256 of them.

First the scales as bfloat16, then the values as int8 in units of their scale. Scales
have five significant bits, rounded up: a product with a value has at most 12, so sums
with whole numbers stay exact in float32. Below 2**-126 they are multiples of 2**-130;
beyond 2**121, where 127 of them would be too large a number, there are none.
"""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.sections import check_length

BLOCK = 256
MOST = 127
LARGEST_SCALE = (121 + 127) << 23  # the bits of 2**121
DROPPED = 0x7FFFF  # the low bits of a float32 that a scale does not have


@primitive
def encode_int8(values: Tensor) -> Tensor:
    """A bfloat16 scale for every 256 values, then the values as int8 of these scales.

    >>> import torch
    >>> encode_int8(torch.tensor([127.0, -63.4, 0.0])).tolist()
    [128, 63, 127, 193, 0]
    """
    blocks = -(-len(values) // BLOCK)
    finite = torch.where(values.isfinite(), values, 0.0)
    table = values.new_zeros(blocks, BLOCK)
    table.view(-1)[: len(values)] = finite
    # A tensor, because some devices multiply by the reciprocal of a number.
    quotient = table.abs().amax(1) / torch.tensor(float(MOST), device=values.device)
    bits = (quotient.view(torch.int32) + DROPPED) & ~DROPPED
    scales = bits.clamp(max=LARGEST_SCALE).view(torch.float32)
    steps = torch.round(table / scales.where(scales > 0, 1.0)[:, None])
    numbers = steps.clamp(-MOST, MOST).to(torch.int8).view(-1)[: len(values)]
    halves = scales.to(torch.bfloat16)
    return torch.cat([halves.view(torch.uint8), numbers.view(torch.uint8)])


@primitive
def decode_int8(section: Tensor, nnz: int, *, errors: Tensor | None = None) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list.

    With `errors`, a device may set that flag instead of raising.
    """
    check_length(section, 8 * nbytes_int8(nnz))
    blocks = -(-nnz // BLOCK)
    halves = section[: 2 * blocks].view(torch.int16).int() & 0xFFFF
    check_scales(bool((halves > LARGEST_SCALE >> 16).any()))
    scales = (halves << 16).view(torch.float32)
    numbers = section[2 * blocks : 2 * blocks + nnz].view(torch.int8)
    check_numbers(bool((numbers < -MOST).any()))
    return numbers.float() * scales.repeat_interleave(BLOCK)[:nnz]


def nbytes_int8(nnz: int) -> int:
    """The length of a section."""
    return nnz + 2 * -(-nnz // BLOCK)


def check_scales(wrong: bool) -> None:  # noqa: FBT001
    """Refuse scales that are negative, not finite, or too large to be multiplied."""
    if wrong:
        raise ValueError("a scale that is not from 0 to 2**121")


def check_numbers(wrong: bool) -> None:  # noqa: FBT001
    """Refuse the byte -128, which no encoder writes."""
    if wrong:
        raise ValueError(f"a value of -128 units where {MOST} are the most")
