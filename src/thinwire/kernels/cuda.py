# ruff: noqa: D103, because the front door documents each function.
"""The kernels on a CUDA device, in Triton: one dense pass, then sparse work only.

What each function means is said by `thinwire.kernels.reference`, whose bits these
return; what is missing here is done by it. Vectors are contiguous; indices are strictly
increasing, which is not checked. An index outside its block is not followed, and no
error tells: nothing here waits for the device, except where the size of a result
depends on the data, and in decoders, which answer for what came over a wire.
"""

from typing import Any

import torch
from torch import Tensor

from thinwire.kernels import cuda_mark, reference
from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda_launch import EXACT, LONGEST, cdiv, flat
from thinwire.kernels.cuda_room import (
    Room,
    lists_candidates,
    select_densely,
    split_list,
)
from thinwire.kernels.marker import Marker

Sparse = tuple[Tensor, Tensor]


def __getattr__(name: str) -> Any:
    return getattr(reference, name)


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int,
    scale: float,
    marker: Marker | None,
    zeroing: bool = True,
) -> None:
    end = offset + grad.numel()
    if not 0 <= offset <= end <= x.numel():
        raise ValueError(
            f"elements {offset} to {end} are not in a vector of {x.numel()}"
        )
    if grad.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"a gradient is float32, bfloat16 or float16: {grad.dtype}")
    whole = grad.numel() == x.numel()
    room = None if marker is None else _marking(marker, x, whole=whole)
    given = grad.detach().contiguous().view(-1)
    vector = flat(x)
    if room is not None:
        room.mark(vector, given, scale=scale, zeroing=zeroing)
    elif grad.numel():
        cuda_mark.accumulate[(cdiv(grad.numel(), cuda_mark.TILE.value),)](
            vector[offset:end],
            given,
            scale,
            grad.numel(),
            scaled=scale != 1.0,
            zeroing=zeroing,
            num_warps=2,
            **EXACT,
        )
    if zeroing and not grad.is_contiguous():
        grad.zero_()


def _marking(marker: Marker, x: Tensor, *, whole: bool) -> Room | None:
    """The room for candidates of a whole vector, if selection has said how many.

    A piece is accumulated without: whoever selects then reads the vector once more.
    """
    marker.forget()
    room = marker.scratch
    if not whole or not isinstance(room, Room) or room.device != x.device:
        return None
    if not marker.describes(x.numel()) or min(room.counts) == 0:
        return None
    marker.valid = [True] * len(marker.blocks)
    return room


def select(
    x: Tensor, k: int, *, block: Block, marker: Marker | None, number: int
) -> Sparse:
    if not 0 <= k <= block.length:
        raise ValueError(f"cannot select {k} of {block.length} elements")
    if block.length and block.position(block.length - 1) >= x.numel():
        raise ValueError(f"{block} does not lie in a vector of {x.numel()} elements")
    vector = flat(x)
    if block.length > LONGEST:
        return reference.select(x, k, block=block, marker=None, number=0)
    if k == 0 or not lists_candidates(block.length, k):
        if marker is not None:
            marker.spend(number)
        if k == 0:
            return x.new_empty(0, dtype=torch.int32), x.new_empty(0)
        return select_densely(vector, k, block)
    if marker is None:
        room = Room((block,), (k,), x.device)
        room.mark(vector)
        return room.choose(vector, (0,), (k,))[0]
    return select_each(x, (k,), marker=marker, numbers=(number,))[0]


def select_each(
    x: Tensor, counts: tuple[int, ...], *, marker: Marker, numbers: tuple[int, ...]
) -> list[Sparse]:
    """Select from several blocks of a marker at once, each worth a list."""
    room = marker.scratch
    known = isinstance(room, Room) and room.device == x.device
    if not known or not room.serves(numbers, counts):
        wanted = [0] * len(marker.blocks)
        for number, count in zip(numbers, counts, strict=True):
            wanted[number] = count
        marker.scratch = room = Room(marker.blocks, wanted, x.device)
    vector = flat(x)
    for number, count in zip(numbers, counts, strict=True):
        if not marker.valid[number] or count > room.counts[number]:
            room.counts[number] = count
            room.mark(vector, numbers=(number, number + 1))
        marker.spend(number)
    return room.choose(vector, numbers, counts)


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    k = min(k, len(values))
    if k <= 0 or k == len(values):
        every, none = (indices.clone(), values.clone()), (indices[:0], values[:0])
        return (every, none) if k > 0 else (none, every)
    return split_list(flat(indices), flat(values), k)
