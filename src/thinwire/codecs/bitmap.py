"""Indices as a bitmap: one bit per element of the vector, set or not."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import checked


@dataclass(frozen=True, slots=True)
class Bitmap:
    """Bit i % 8 of byte i // 8, the least significant first; for dense lists."""

    @property
    def tag(self) -> int:
        return 2

    @property
    def regathers(self) -> bool:
        return False

    @property
    def any_order(self) -> None:
        return None

    def nbytes(self, size: int, nnz: int) -> int:
        del nnz
        return -(-size // 8)

    def encode(self, indices: Tensor, size: int, *, key: int) -> Tensor:
        del key
        return kernels.encode_bitmap(indices, size)

    def decode(self, section: Tensor, size: int, nnz: int, *, key: int) -> Tensor:
        del key
        with checked("a bitmap"):
            return kernels.decode_bitmap(section, size, nnz)
