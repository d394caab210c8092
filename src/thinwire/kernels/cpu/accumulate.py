"""Accumulate a gradient and select from a vector: one pass as fast as an addition."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cpu import passes
from thinwire.kernels.cpu.arrays import Before, array_of, place_of
from thinwire.kernels.cpu.search import SLACK, UNKNOWN, Marks, search
from thinwire.kernels.cpu.threads import share_out
from thinwire.kernels.sections import Sparse, check_gradient

# Other types than float32 and bfloat16 are converted in pieces that fit the cache.
_PIECE = 1 << 16


_NOTHING = np.empty(0, np.uint8)


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    before: Tensor | None = None,
) -> None:
    array, keep = array_of(x), before_of(before)
    for start, addend in pieces_of(grad, offset, len(array)):
        add = partial(passes.accumulate, array, start, addend, np.float32(scale), keep)
        share_out(add, start, start + len(addend), boundary=lambda position: position)


def before_of(before: Tensor | None) -> Before:
    """Where a kernel keeps a vector as it was; None: nowhere."""
    return _NOTHING if before is None else array_of(before)


def pieces_of(
    grad: Tensor, offset: int, size: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """A gradient as arrays of float32 or the bits of bfloat16, and where each begins.

    Its own memory if possible, else converted copies of small pieces; when these have
    been consumed, the gradient is set to zero.
    """
    check_gradient(grad, offset, size)
    if grad.dtype != torch.float16 and grad.is_contiguous():
        bits = grad if grad.dtype == torch.float32 else grad.view(torch.uint16)
        yield offset, array_of(bits)
        return
    for start in range(0, grad.numel(), _PIECE):
        piece = grad[start : start + _PIECE].to(torch.float32, copy=True)
        yield offset + start, array_of(piece.contiguous())
    grad.zero_()


def select(x: Tensor, k: int, *, block: Block | None = None) -> Sparse:
    place = place_of(x, block)
    words = np.empty(-(-place[-1] // 64), np.int64)
    return search(place, k, Marks(words, UNKNOWN, SLACK))[0]
