"""Values as they are: 32 bits each, no error."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs.codec import ValueCodec, unpadded


@dataclass(frozen=True, slots=True)
class Float32(ValueCodec):
    """Each value as a little-endian IEEE float32."""

    tag = 1

    def nbytes(self, nnz: int) -> int:
        return 4 * nnz

    def encode(self, values: Tensor) -> Tensor:
        return values.contiguous().view(torch.uint8)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return unpadded("Float32", section, 4 * nnz).view(torch.float32)
