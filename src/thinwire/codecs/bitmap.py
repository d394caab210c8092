"""Indices as a bitmap: one bit per element of the vector, set or not."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, checked


@dataclass(frozen=True, slots=True)
class Bitmap(IndexCodec):
    """Bit i % 8 of byte i // 8, the least significant first; for dense lists."""

    tag = 2

    def nbytes(self, size: int, nnz: int) -> int:
        del nnz
        return -(-size // 8)

    def encode(self, indices: Tensor, size: int) -> Tensor:
        return kernels.encode_bitmap(indices, size)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        return self.decode_deferring(section, size, nnz, None)

    def decode_deferring(
        self, section: Tensor, size: int, nnz: int, errors: Tensor | None
    ) -> Tensor:
        with checked("a bitmap"):
            return kernels.decode_bitmap(section, size, nnz, errors=errors)
