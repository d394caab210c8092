"""Indices as they are: 32 bits each, any machine, nothing to compute."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, unpadded
from thinwire.errors import ConfigError, WireError


@dataclass(frozen=True, slots=True)
class Int32(IndexCodec):
    """Each index as a little-endian int32. The only one that keeps any order."""

    tag = 1
    keeps_order = True

    def nbytes(self, size: int, nnz: int) -> int:
        del size
        return 4 * nnz

    def encode(self, indices: Tensor, size: int) -> Tensor:
        if size > 2**31:
            raise ConfigError(
                f"a vector of {size} elements has indices beyond 32 bits; "
                'use scope="bucket" so that it is reduced in parts'
            )
        return indices.to(torch.int32).view(torch.uint8)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        return self.decode_deferring(section, size, nnz, None)

    def decode_deferring(
        self, section: Tensor, size: int, nnz: int, errors: Tensor | None
    ) -> Tensor:
        indices = self.decode_unordered(section, size, nnz)
        if not kernels.strictly_increasing(indices, size, errors=errors):
            raise WireError(
                f"Int32: indices that do not increase strictly from 0 up to {size}"
            )
        return indices

    def decode_unordered(self, section: Tensor, size: int, nnz: int) -> Tensor:
        indices = unpadded("Int32", section, 4 * nnz).view(torch.int32)
        return indices.to(kernels.index_dtype(size))
