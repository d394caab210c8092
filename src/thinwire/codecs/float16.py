"""Values in IEEE half precision: 16 bits each, an error of at most 2**-11 of a value.

That is for magnitudes from 2**-14 to 65504. Larger ones become 65504, smaller ones a
multiple of 2**-24: unlike bfloat16, this needs gradients of a reasonable scale.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, unpadded


@dataclass(frozen=True, slots=True)
class Float16(ValueCodec):
    """Each value as the nearest float16, little endian; ties to even.

    >>> section = Float16().encode(torch.tensor([1.0003, 1e6]))
    >>> Float16().decode(section, 2).tolist()
    [1.0, 65504.0]
    """

    tag = 3

    def nbytes(self, nnz: int) -> int:
        return 2 * nnz

    def encode(self, values: Tensor) -> Tensor:
        return kernels.to_float16(values).view(torch.uint8)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return unpadded("Float16", section, 2 * nnz).view(torch.float16).float()
