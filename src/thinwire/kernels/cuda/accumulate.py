"""Error feedback on a vector: accumulate a gradient, select and take from it.

An index outside its block is not followed, and no error is raised: nothing here waits
for the device, except where the size of a result depends on the data.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda import elements
from thinwire.kernels.cuda import mark as marking
from thinwire.kernels.cuda.elements import leave_at_
from thinwire.kernels.cuda.halves import to_bfloat16
from thinwire.kernels.cuda.launch import EXACT, LONGEST, cdiv, flat
from thinwire.kernels.cuda.partition import select_densely
from thinwire.kernels.cuda.room import Room, lists_candidates
from thinwire.kernels.marker import Marker, chosen_blocks
from thinwire.kernels.reference import accumulate as reference

Sparse = tuple[Tensor, Tensor]


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    marker: Marker | None = None,
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
        marking.accumulate[(cdiv(grad.numel(), marking.TILE.value),)](
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
    x: Tensor,
    k: int,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> Sparse:
    if marker is not None:
        block = marker.blocks[number]
    block = block or Block.whole(x.numel())
    if not 0 <= k <= block.length:
        raise ValueError(f"cannot select {k} of {block.length} elements")
    if block.length and block.position(block.length - 1) >= x.numel():
        raise ValueError(f"{block} does not lie in a vector of {x.numel()} elements")
    vector = flat(x)
    if block.length > LONGEST:
        return reference.select.reference(x, k, block=block)
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
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
) -> list[Sparse]:
    numbers = chosen_blocks(marker, numbers)
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
    numbers: Sequence[int] | None = None,
    rounding: torch.dtype = torch.float32,
) -> list[Sparse]:
    numbers = chosen_blocks(marker, numbers, rounding)
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


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> None:
    if marker is not None:
        block = marker.blocks[number]
    # A list of candidates is not added to: the block is read once more instead.
    _give_back(marker, flat(x), number)
    if marker is not None and isinstance(marker.scratch, Room):
        marker.scratch.received.add(number)
    elements.add(x, indices, values, block)
