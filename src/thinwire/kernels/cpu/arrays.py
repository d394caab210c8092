"""Tensors as arrays, and blocks as places in them: what compiled kernels are given."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block

# A block of an array for a compiled kernel: (x, start, chunk, stride, length). The
# chunk of a contiguous block is a multiple of 64. It is a plain tuple, because numba
# needs 2 us more for the type of a named one.
Place = tuple[NDArray[np.float32], int, int, int, int]


def array_of(tensor: Tensor) -> NDArray[Any]:
    """A contiguous tensor's memory, flat."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    array: NDArray[Any] = tensor.numpy()
    if not array.flags.c_contiguous:
        raise ValueError("a kernel works on contiguous tensors: call .contiguous()")
    return array if array.ndim == 1 else array.reshape(-1)


def place_of(x: Tensor, block: Block | None = None) -> Place:
    """Where a block, by default all, lies in a vector."""
    block = block or Block.whole(x.numel())
    if block.length and block.position(block.length - 1) >= x.numel():
        raise ValueError(f"{block} does not lie in a vector of {x.numel()} elements")
    array = array_of(x)
    if block.contiguous:
        rounded = max(-(-block.length // 64) * 64, 64)
        return array, block.start, rounded, rounded, block.length
    return array, *block
