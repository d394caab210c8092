"""Values as they are: 32 bits each, no error."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs.codec import taken


@dataclass(frozen=True, slots=True)
class Float32:
    """Each value as a little-endian IEEE float32."""

    @property
    def tag(self) -> int:
        return 1

    @property
    def sorts(self) -> bool:
        return False

    def nbytes(self, nnz: int) -> int:
        return 4 * nnz

    def encode(self, values: Tensor, *, key: int) -> Tensor:
        del key
        return values.contiguous().view(torch.uint8)

    def decode(self, section: Tensor, nnz: int, *, key: int) -> Tensor:
        del key
        return taken("Float32", section, 4 * nnz).view(torch.float32)
