"""Indices as they are: 32 bits each, any machine, nothing to compute."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.errors import ConfigError, WireError
from thinwire.sparse import index_dtype


@dataclass(frozen=True, slots=True)
class Int32:
    """Each index as a little-endian int32."""

    @property
    def tag(self) -> int:
        return 1

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
        if section.numel() < 4 * nnz:
            raise WireError(f"{nnz} indices in {section.numel()} bytes")
        indices = section[: 4 * nnz].view(torch.int32)
        if not kernels.strictly_increasing(indices, size):
            raise WireError(
                f"indices that do not increase strictly from 0 up to {size}"
            )
        return indices.to(index_dtype(size))
