"""Accumulate a gradient, select the largest elements.

Nothing here waits for the device.
"""

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda import mark as marking
from thinwire.kernels.cuda.buffer import CandidateBuffer, lists_candidates
from thinwire.kernels.cuda.launch import EXACT, LONGEST, cdiv, flat
from thinwire.kernels.cuda.partition import select_densely
from thinwire.kernels.reference import accumulate as reference
from thinwire.kernels.sections import Sparse, check_gradient


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    before: Tensor | None = None,
) -> None:
    size = grad.numel()
    check_gradient(grad, offset, x.numel())
    if size:
        marking.accumulate[(cdiv(size, marking.TILE.value),)](
            flat(x)[offset : offset + size],
            grad.detach().contiguous().view(-1),
            scale,
            flat(x if before is None else before)[offset : offset + size],
            size,
            scaled=scale != 1.0,
            keeping=before is not None,
            num_warps=2,
            **EXACT,
        )
    if not grad.is_contiguous():
        grad.zero_()


def select(x: Tensor, k: int, *, block: Block | None = None) -> Sparse:
    block = block or Block.whole(x.numel())
    if not 0 <= k <= block.length:
        raise ValueError(f"cannot select {k} of {block.length} elements")
    block.check_inside(x.numel())
    vector = flat(x)
    if block.length > LONGEST:
        return reference.select.reference(x, k, block=block)
    if k == 0:
        return x.new_empty(0, dtype=torch.int32), x.new_empty(0)
    if not lists_candidates(block.length, k):
        return select_densely(vector, k, block)
    buffer = CandidateBuffer(vector, (block,), (k,))
    buffer.list_candidates(0, 1)
    return buffer.choose((0,), (k,), None)[0]
