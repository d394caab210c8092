"""Indices as they are: 32 bits each, any machine, nothing to compute."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import AnyOrder, taken
from thinwire.errors import ConfigError, WireError


@dataclass(frozen=True, slots=True)
class Int32:
    """Each index as a little-endian int32. The only one that keeps any order."""

    @property
    def tag(self) -> int:
        return 1

    @property
    def regathers(self) -> bool:
        return False

    @property
    def any_order(self) -> AnyOrder:
        return _read

    def nbytes(self, size: int, nnz: int) -> int:
        del size
        return 4 * nnz

    def encode(self, indices: Tensor, size: int, *, key: int) -> Tensor:
        del key
        if size > 2**31:
            raise ConfigError(
                f"a vector of {size} elements has indices beyond 32 bits; "
                'use scope="bucket" so that it is reduced in parts'
            )
        return indices.to(torch.int32).view(torch.uint8)

    def decode(self, section: Tensor, size: int, nnz: int, *, key: int) -> Tensor:
        del key
        indices = _read(section, size, nnz)
        if not kernels.strictly_increasing(indices, size):
            raise WireError(
                f"Int32: indices that do not increase strictly from 0 up to {size}"
            )
        return indices


def _read(section: Tensor, size: int, nnz: int) -> Tensor:
    indices = taken("Int32", section, 4 * nnz).view(torch.int32)
    return indices.to(kernels.index_dtype(size))
