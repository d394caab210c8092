# ruff: noqa: D103, because the front door documents each function.
"""The kernels on a CUDA device, in Triton: one dense pass, then sparse work only.

What each function means is said by `thinwire.kernels.reference`, whose bits these
return; what is missing here is done by it. Vectors are contiguous; indices are strictly
increasing, which is not checked. An index outside its block is not followed, and no
error tells: nothing here waits for the device, except where the size of a result
depends on the data, and in decoders, which answer for what came over a wire.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from thinwire.kernels import cuda_elements, cuda_mark, cuda_spread, reference
from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda_bits import pack_bits, unpack_bits  # noqa: F401
from thinwire.kernels.cuda_elements import gather  # noqa: F401
from thinwire.kernels.cuda_elias_fano import (  # noqa: F401
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
    strictly_increasing,
)
from thinwire.kernels.cuda_halves import to_bfloat16, to_float16  # noqa: F401
from thinwire.kernels.cuda_int8 import decode_int8, encode_int8  # noqa: F401
from thinwire.kernels.cuda_launch import EXACT, LONGEST, cdiv, flat
from thinwire.kernels.cuda_lists import (  # noqa: F401
    join,
    merge_add,
    merge_all,
    merge_split,
)
from thinwire.kernels.cuda_log import decode_log, encode_log  # noqa: F401
from thinwire.kernels.cuda_packet import decode_packet, encode_packet  # noqa: F401
from thinwire.kernels.cuda_partition import select_densely, split_list
from thinwire.kernels.cuda_room import Room, lists_candidates
from thinwire.kernels.cuda_sketch import (  # noqa: F401
    encode_sketch,
    estimate_sketch_,
    sketch_energy,
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
        lending = marker is not None and marker.lending
        room.mark(vector, given, scale=scale, zeroing=zeroing, lending=lending)
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
    if isinstance(room, Room):
        room.restore(flat(x), sorted(room.lent))
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
        _give_back(marker, vector, number)
        if k == 0:
            return x.new_empty(0, dtype=torch.int32), x.new_empty(0)
        return select_densely(vector, k, block)
    if marker is None:
        room = Room((block,), (k,), x.device)
        room.mark(vector)
        return room.choose(vector, (0,), (k,))[0]
    return _select_listed(x, (k,), marker, (number,))[0]


def select_each(
    x: Tensor, counts: Sequence[int], *, marker: Marker, numbers: Sequence[int]
) -> list[Sparse]:
    blocks = [marker.blocks[number] for number in numbers]
    if all(lists_candidates(b.length, k) for b, k in zip(blocks, counts, strict=True)):
        return _select_listed(x, counts, marker, numbers)
    return [
        select(x, k, block=block, marker=marker, number=number)
        for k, block, number in zip(counts, blocks, numbers, strict=True)
    ]


def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int],
    rounding: torch.dtype,
) -> list[Sparse]:
    blocks = [marker.blocks[number] for number in numbers]
    if all(lists_candidates(b.length, k) for b, k in zip(blocks, counts, strict=True)):
        return _select_listed(x, counts, marker, numbers, removing=rounding)
    taken = select_each(x, counts, marker=marker, numbers=numbers)
    for block, (indices, values) in zip(blocks, taken, strict=True):
        whole = rounding == torch.float32
        told = values if whole else to_bfloat16(values).float()
        leave_at_(x, indices, values, told, block=block)
    return taken


def reclaim_(x: Tensor, marker: Marker) -> None:
    marker.forget()
    if isinstance(marker.scratch, Room):
        marker.scratch.restore(flat(x), sorted(marker.scratch.lent))


def _select_listed(
    x: Tensor,
    counts: Sequence[int],
    marker: Marker,
    numbers: Sequence[int],
    *,
    removing: torch.dtype | None = None,
) -> list[Sparse]:
    room = marker.scratch
    if not isinstance(room, Room) or not room.serves(x.device, counts):
        if isinstance(room, Room):
            room.restore(flat(x), sorted(room.lent))
        wanted = [1] * len(marker.blocks)
        for number, count in zip(numbers, counts, strict=True):
            wanted[number] = count
        marker.scratch = room = Room(marker.blocks, wanted, x.device)
        marker.forget()
    vector = flat(x)
    unmarked = [
        number
        for number, count in zip(numbers, counts, strict=True)
        if not marker.valid[number] or count > room.counts[number]
    ]
    for number, count in zip(numbers, counts, strict=True):
        room.counts[number] = count
        marker.spend(number)
        room.taken.pop(number, None)
        if removing is not None and number not in room.received:
            room.taken[number] = removing
    room.received.difference_update(numbers)
    for low, high in _runs(unmarked):
        room.mark(vector, numbers=(low, high))
    return room.choose(vector, numbers, counts, removing=removing)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in ascending order as ranges."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs


def _give_back(marker: Marker | None, vector: Tensor, number: int) -> None:
    """Forget the candidates of a block; those that were lent return to the vector."""
    if marker is None:
        return
    marker.spend(number)
    if isinstance(marker.scratch, Room) and number in marker.scratch.lent:
        marker.scratch.restore(vector, (number,))


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    k = min(k, len(values))
    if k <= 0 or k == len(values):
        every, none = (indices.clone(), values.clone()), (indices[:0], values[:0])
        return (every, none) if k > 0 else (none, every)
    return split_list(flat(indices), flat(values), k)


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block,
    marker: Marker | None,
    number: int,
) -> None:
    # A list of candidates is not added to: the block is read once more instead.
    _give_back(marker, flat(x), number)
    if marker is not None and isinstance(marker.scratch, Room):
        marker.scratch.received.add(number)
    cuda_elements.add(x, indices, values, block)


def subtract_at_(x: Tensor, indices: Tensor, values: Tensor, *, block: Block) -> None:
    cuda_elements.subtract(x, indices, values, block)


def leave_at_(
    x: Tensor, indices: Tensor, held: Tensor, sent: Tensor, *, block: Block
) -> None:
    cuda_elements.leave(x, indices, held, sent, block)


def keep_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    told: Tensor | None,
    holders: tuple[int, int],
    block: Block,
) -> None:
    cuda_elements.keep(x, indices, values, told, holders, block)


def scatter_(
    out: Tensor, indices: Tensor, values: Tensor, *, block: Block, divisor: float
) -> None:
    cuda_elements.scatter(out, indices, values, block, divisor)


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    mean = values / _number(ranks, values.device)
    start = 0
    for piece in pieces:
        block = Block.whole(piece.numel())
        cuda_elements.scatter(piece, indices, mean, block, 1.0, lowest=start)
        start += piece.numel()
    return mean


@lru_cache(maxsize=64)
def _number(number: int, device: torch.device) -> Tensor:
    """On the device, where a quotient is one: by a number it is a product."""
    return torch.tensor(float(number), device=device)


def doubt_unless_(word: Tensor, section: Tensor, wanted: Tensor) -> None:
    cuda_elements.doubt_unless(word, section, wanted)


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    return cuda_spread.magnitudes(vector, bounds)
