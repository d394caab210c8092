"""Gaps between indices in LEB128, a byte or more each: the simplest variable length."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, checked


@dataclass(frozen=True, slots=True)
class DeltaVarint(IndexCodec):
    """Seven bits of a gap per byte, low ones first; the top bit says more follow."""

    tag = 5

    def encode(self, indices: Tensor, size: int) -> Tensor:
        del size
        return kernels.encode_varint(indices)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        with checked("varint gaps"):
            return kernels.decode_varint(section, size, nnz)
