"""Error feedback on a vector: accumulate a gradient, select and take from it.

One pass as fast as an addition, then sparse work only. Vectors are contiguous.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cpu import passes
from thinwire.kernels.cpu.arrays import Place, array_of, place_of
from thinwire.kernels.cpu.elements import (
    NO_WORDS,
    add_entries,
    check_inside,
    replace_entries,
)
from thinwire.kernels.cpu.halves import to_bfloat16
from thinwire.kernels.cpu.loans import Loans
from thinwire.kernels.cpu.search import Marks, search
from thinwire.kernels.cpu.threads import make, share_out, threads_for
from thinwire.kernels.marker import SLACK, Marker, chosen_blocks

Sparse = tuple[Tensor, Tensor]

# Other types than float32 and bfloat16 are converted in pieces that fit the cache.
_PIECE = 1 << 16
# Taking an element from a list costs as much as reading this many of a vector.
_DEAR = 40


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    marker: Marker | None = None,
) -> None:
    size, length = x.numel(), grad.numel()
    end = offset + length
    if not 0 <= offset <= end <= size:
        raise ValueError(f"elements {offset} to {end} are not in a vector of {size}")
    dtype = grad.dtype
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"a gradient is float32, bfloat16 or float16: {dtype}")
    if length == 0 < size:
        return  # and what was lent stays so
    plain = dtype != torch.float16 and grad.is_contiguous()
    if marker is not None:
        _give_back(x, marker)
        if not marker.describes(size):
            marker.forget()
            marker = None
        elif plain and length == size and _lend(x, grad, scale, marker):
            return
        else:
            marker.cover(offset, end)
    if plain:
        _accumulate(x, grad, offset, scale, marker)
        return
    for start in range(0, length, _PIECE):
        piece = grad[start : start + _PIECE].to(torch.float32, copy=True).contiguous()
        _accumulate(x, piece, offset + start, scale, marker)
    grad.zero_()


def _lend(x: Tensor, grad: Tensor, scale: float, marker: Marker) -> bool:
    """Accumulate with loans, if what is known of the vector is enough for them."""
    loans = marker.scratch
    if not isinstance(loans, Loans):
        return False
    crowded = loans.lend(x, _addend(grad), float(scale), marker)
    if crowded:
        _give_back(x, marker, crowded)
    return crowded is not None


def _addend(grad: Tensor) -> NDArray[Any]:
    return array_of(grad if grad.dtype == torch.float32 else grad.view(torch.uint16))


def _accumulate(
    x: Tensor, grad: Tensor, offset: int, scale: float, marker: Marker | None
) -> None:
    given = (array_of(x), offset, _addend(grad), np.float32(scale))
    low, high = offset, offset + grad.numel()
    if marker is None:
        add = partial(passes.accumulate, *given)
        share_out(add, low, high, boundary=lambda position: position)
        return
    marks = (array_of(marker.bitmap), marker.starts, marker.firsts)
    layout = (*marks, marker.threshold_bits, marker.chunk)

    def add_and_mark(low: int, high: int) -> None:
        middle = max(marker.word_boundary((low + high) // 2), low)
        passes.accumulate_and_mark(*layout, *given, low, middle, high)

    share_out(add_and_mark, low, high, boundary=marker.word_boundary)


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
        _give_back(x, marker, [number])
    return _select(place_of(x, block), k, marker, number)


def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
    rounding: torch.dtype = torch.float32,
) -> list[Sparse]:
    numbers = chosen_blocks(marker, numbers, rounding)
    wanted = list(zip(counts, numbers, strict=True))
    # Before threads share the marker: each would make its own.
    loans = _loans(marker) if marker.lending else None
    taken: dict[int, Sparse] = {}
    if loans is not None and loans.loans.keys() >= set(numbers):
        threads = threads_for(sum(counts) * _DEAR)  # lists alone are looked at
    else:
        threads = threads_for(sum(marker.blocks[number].length for number in numbers))
    # One block is shared by those who lent it; several are dealt out.
    sharing = threads if len(wanted) == 1 else 1

    def take(k: int, number: int) -> None:
        lent = None
        if loans is not None and number in loans.loans:
            if loans.rounding == rounding:
                lent = _take_lent(loans, x, k, marker, number, sharing)
            if lent is None:
                _give_back(x, marker, [number])
        taken[number] = lent or _take(x, k, marker, number, rounding)

    make([partial(take, *each) for each in wanted], threads)
    if loans is not None:
        for k, number in wanted:
            loans.ask(number, k, marker.blocks[number].length, rounding)
    return [taken[number] for number in numbers]


def _take(
    x: Tensor, k: int, marker: Marker, number: int, rounding: torch.dtype
) -> Sparse:
    place = place_of(x, marker.blocks[number])
    indices, values = _select(place, k, marker, number)
    told = values.numpy()
    if rounding == torch.bfloat16:  # in this thread: torch would ask others to help
        bits = to_bfloat16(values).view(torch.uint16).numpy()
        told = (bits.astype(np.uint32) << 16).view(np.float32)
    # What was just read is cached, and need not be read again.
    replace_entries(*place, indices.numpy(), values.numpy(), told)
    return indices, values


def _loans(marker: Marker) -> Loans:
    if marker.scratch is None:
        marker.scratch = Loans()
    loans: Loans = marker.scratch
    return loans


def _select(place: Place, k: int, marker: Marker | None, number: int) -> Sparse:
    length = place.length
    if not 0 <= k <= length:
        raise ValueError(f"cannot select {k} of {length} elements")
    dtype = torch.int32 if length < 2**31 else torch.int64
    indices, values = torch.empty(k, dtype=dtype), torch.empty(k)
    if marker is None:
        marks = Marks(np.empty(-(-length // 64), np.int64), -1, SLACK)
    else:
        marks = _marks(marker, number)
        marker.spend(number)
    if k > 0:
        hint, missed = search(place, k, marks, indices.numpy(), values.numpy())
        if marker is not None:
            marker.hint_bits[number] = hint
            marker.slack[number] = _next_slack(marks.slack, missed=missed)
    return indices, values


def _take_lent(
    loans: Loans, x: Tensor, k: int, marker: Marker, number: int, threads: int
) -> Sparse | None:
    """What `_take` takes, from what was lent; None where that is not enough."""
    length = marker.blocks[number].length
    if not 0 < k <= length:
        return None
    marker.spend(number)
    # NumPy's, because whoever comes from a dense pass finds torch's code out of cache.
    indices = np.empty(k, np.int32 if length < 2**31 else np.int64)
    values = np.empty(k, np.float32)
    enough = loans.take(number, x, marker, (indices, values), threads)
    marker.slack[number] = _next_slack(marker.slack[number], missed=not enough)
    return (torch.from_numpy(indices), torch.from_numpy(values)) if enough else None


def reclaim_(x: Tensor, marker: Marker) -> None:
    _give_back(x, marker)
    marker.forget()


def _give_back(x: Tensor, marker: Marker, numbers: Sequence[int] | None = None) -> None:
    """Put what was lent back into the vector: all, or that of some blocks."""
    loans = marker.scratch
    if isinstance(loans, Loans) and loans.loans:
        asked = loans.loans if numbers is None else numbers
        for number in [each for each in asked if each in loans.loans]:
            loans.give_back(number, x, marker)


def _marks(marker: Marker, number: int) -> Marks:
    words = array_of(marker.bitmap)[marker.offsets[number] : marker.offsets[number + 1]]
    known = marker.valid[number]
    threshold = int(marker.threshold_bits[number]) if known else -1
    return Marks(words, threshold, marker.slack[number])


def _next_slack(slack: float, *, missed: bool) -> float:
    """Down slowly: a miss is a second look at a block, a tight hint saves less."""
    return min(2 * slack, 3.0) if missed else max(0.99 * slack, SLACK)


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> None:
    place = place_of(x, block if marker is None else marker.blocks[number])
    listed = (array_of(indices), array_of(values))
    loans = None if marker is None else marker.scratch
    if marker is not None and isinstance(loans, Loans) and number in loans.loans:
        check_inside(loans.add(number, x, marker, *listed), place)
        return
    words = NO_WORDS if marker is None else _marks(marker, number).words
    check_inside(add_entries(*place, *listed, np.float32(1), words), place)
