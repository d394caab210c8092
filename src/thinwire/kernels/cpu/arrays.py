"""The types of arrays that compiled kernels take, and conversions to them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
FloatBits = NDArray[np.int32]  # the bits of float32 values
Halves = NDArray[np.uint16]  # the bits of bfloat16 or float16 values
Octets = NDArray[np.uint8]
Words = NDArray[np.uint64]
Bits = NDArray[np.int64]  # a mark for each element, or whole numbers
Counts = NDArray[np.int32]
Indices = NDArray[Any]  # int32 or int64
Gradient = NDArray[Any]  # float32, or the bits of bfloat16 as uint16
Before = NDArray[Any]  # float32, or octets: none, and nothing is copied
Entries = tuple[Indices, Floats]
# Indices and values of several lists, and where each begins and ends.
Lists = tuple[Indices, Floats, Bits, Bits]

# A block of an array for a compiled kernel: (x, start, chunk, stride, length). The
# chunk of a contiguous block is a multiple of 64. It is a plain tuple, because numba
# needs 2 us more for the type of a named one.
Place = tuple[Floats, int, int, int, int]


def array_of(tensor: Tensor) -> NDArray[Any]:
    """A contiguous tensor's memory, flat."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    array: NDArray[Any] = tensor.numpy()
    if not array.flags.c_contiguous:
        raise ValueError("a kernel works on contiguous tensors: call .contiguous()")
    return array if array.ndim == 1 else array.reshape(-1)


def place_of(x: Tensor, block: Block | None = None) -> Place:
    """A block, by default all, of a vector's memory."""
    block = block or Block.whole(x.numel())
    block.check_inside(x.numel())
    array = array_of(x)
    if block.contiguous:
        rounded = max(-(-block.length // 64) * 64, 64)
        return array, block.start, rounded, rounded, block.length
    return array, *block
