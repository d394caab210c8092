"""Gaps between indices in LEB128, a byte or more each: the simplest variable length."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import checked


@dataclass(frozen=True, slots=True)
class DeltaVarint:
    """Seven bits of a gap per byte, low ones first; the top bit says more follow."""

    @property
    def tag(self) -> int:
        return 5

    @property
    def regathers(self) -> bool:
        return False

    @property
    def any_order(self) -> None:
        return None

    def nbytes(self, size: int, nnz: int) -> None:
        del size, nnz
        return None

    def encode(self, indices: Tensor, size: int, *, key: int) -> Tensor:
        del size, key
        return kernels.encode_varint(indices)

    def decode(self, section: Tensor, size: int, nnz: int, *, key: int) -> Tensor:
        del key
        with checked("varint gaps"):
            return kernels.decode_varint(section, size, nnz)
