"""Values in bfloat16: 16 bits each, an error of at most 2**-8 of a value.

That is for magnitudes from 2**-126 on; smaller ones become a multiple of 2**-133.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, unpadded


@dataclass(frozen=True, slots=True)
class BFloat16(ValueCodec):
    """Each value as the nearest bfloat16, little endian; ties to even.

    A finite value remains finite: what exceeds the largest bfloat16 stays behind.

    >>> section = BFloat16().encode(torch.tensor([1.005, 3.4e38]))
    >>> BFloat16().decode(section, 2).tolist()
    [1.0078125, 3.3895313892515355e+38]
    """

    tag = 2

    def nbytes(self, nnz: int) -> int:
        return 2 * nnz

    def encode(self, values: Tensor) -> Tensor:
        return kernels.to_bfloat16(values).view(torch.uint8)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return unpadded("BFloat16", section, 2 * nnz).view(torch.bfloat16).float()
