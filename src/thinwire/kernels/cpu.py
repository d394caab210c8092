# ruff: noqa: D103, because the front door documents each function.
"""The kernels on a processor: one pass of the speed of an add, then sparse work only.

What each function means is said by `thinwire.kernels.reference`, whose bits these
return. Vectors are contiguous; indices are strictly increasing, which is not checked
(see `strictly_increasing`). An index outside its block raises `IndexError`, the entries
before it already done.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels import cpu_dense, cpu_lists, cpu_select, reference
from thinwire.kernels.blocks import Block
from thinwire.kernels.cpu_arrays import Place, array_of, place_of
from thinwire.kernels.cpu_bits import pack_bits, unpack_bits  # noqa: F401
from thinwire.kernels.cpu_bloom import (  # noqa: F401
    bloom_positives,
    bloom_resolve,
    bloom_sample,
    encode_bloom,
)
from thinwire.kernels.cpu_dexp import decode_dexp, encode_dexp  # noqa: F401
from thinwire.kernels.cpu_elias_fano import (  # noqa: F401
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
)
from thinwire.kernels.cpu_halves import to_bfloat16, to_float16  # noqa: F401
from thinwire.kernels.cpu_int8 import decode_int8, encode_int8  # noqa: F401
from thinwire.kernels.cpu_loans import Loans
from thinwire.kernels.cpu_log import decode_log, encode_log  # noqa: F401
from thinwire.kernels.cpu_packet import decode_packet, encode_packet  # noqa: F401
from thinwire.kernels.cpu_peel import (  # noqa: F401
    estimate_rows,
    ones_of,
    peel_rows_,
    set_bits,
    sketch_rows,
)
from thinwire.kernels.cpu_poly import decode_poly, encode_poly  # noqa: F401
from thinwire.kernels.cpu_qsgd import decode_qsgd, encode_qsgd  # noqa: F401
from thinwire.kernels.cpu_rice import decode_rice, encode_rice  # noqa: F401
from thinwire.kernels.cpu_runs import decode_runs, encode_runs  # noqa: F401
from thinwire.kernels.cpu_search import Marks, search
from thinwire.kernels.cpu_sketch import (  # noqa: F401
    encode_sketch,
    estimate_sketch_,
    shuffled,
    sketch_energy,
)
from thinwire.kernels.cpu_threads import make, share_out, threads_for
from thinwire.kernels.cpu_varint import decode_varint, encode_varint  # noqa: F401
from thinwire.kernels.marker import SLACK, Marker, dealt
from thinwire.kernels.trees import added_up

Sparse = tuple[Tensor, Tensor]

# What is not float32 or bfloat16 is converted so many elements at a time, in the cache.
_PIECE = 1 << 16
# To take an element from a list is as much as to pass by so many of a vector.
_DEAR = 40
_NO_WORDS = np.empty(0, np.int64)


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    if vector.dtype not in (torch.float32, torch.bfloat16):
        return reference.magnitudes(vector, bounds)
    wide = vector.dtype == torch.float32
    bits = vector.view(torch.int32 if wide else torch.uint16)
    peaks = torch.empty(bounds.numel() - 1, dtype=torch.int64)
    cpu_dense.peaks(array_of(bits), array_of(bounds.long()), array_of(peaks))
    largest = (peaks if wide else peaks << 16).to(torch.int32).view(torch.float32)
    return largest.nan_to_num_(nan=float("inf"), posinf=float("inf"))


def row_peaks(vector: Tensor, width: int) -> Tensor:
    if vector.dtype != torch.float32:
        return reference.row_peaks(vector, width)
    peaks = torch.empty(-(-vector.numel() // width), dtype=torch.int32)
    cpu_dense.row_peaks(array_of(vector.view(torch.int32)), width, array_of(peaks))
    largest = peaks.view(torch.float32)
    return largest.nan_to_num_(nan=float("inf"), posinf=float("inf"))


def at_least(x: Tensor, least: float) -> Tensor:
    bits = max(int(np.float32(least).view(np.int32)), 1)
    place = place_of(x, Block.whole(x.numel()))
    words = np.empty(-(-x.numel() // 64), np.int64)
    cpu_dense.mark(*place, words, bits)
    return ones_of(words.view(np.uint64), x.numel())


def accumulate_(
    x: Tensor, grad: Tensor, *, offset: int, scale: float, marker: Marker | None
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
        add = partial(cpu_dense.accumulate, *given)
        share_out(add, low, high, boundary=lambda position: position)
        return
    marks = (array_of(marker.bitmap), marker.starts, marker.firsts)
    layout = (*marks, marker.threshold_bits, marker.chunk)

    def add_and_mark(low: int, high: int) -> None:
        middle = max(marker.word_boundary((low + high) // 2), low)
        cpu_dense.accumulate_and_mark(*layout, *given, low, middle, high)

    share_out(add_and_mark, low, high, boundary=marker.word_boundary)


def select(
    x: Tensor, k: int, *, block: Block, marker: Marker | None, number: int
) -> Sparse:
    if marker is not None:
        _give_back(x, marker, [number])
    return _select(place_of(x, block), k, marker, number)


def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int],
    rounding: torch.dtype,
) -> list[Sparse]:
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
    cpu_lists.leave_at(*place, indices.numpy(), values.numpy(), told)
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


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    nnz = left.numel() + right.numel()
    indices, values = torch.empty(nnz, dtype=left.dtype), torch.empty(nnz)
    lists = (left, left_values, right, right_values, indices, values)
    nnz = cpu_lists.merge_add(*map(array_of, lists))
    return indices[:nnz], values[:nnz]


def merge_all(lists: Sequence[Sparse]) -> Sparse:
    return added_up(lists, lambda left, right: merge_add(*left, *right))


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    k = min(k, values.numel())
    if k <= 0 or k == values.numel():
        every, none = (indices.clone(), values.clone()), (indices[:0], values[:0])
        return (every, none) if k else (none, every)
    kept = torch.empty(k, dtype=indices.dtype), torch.empty(k)
    rest = values.numel() - k
    dropped = torch.empty(rest, dtype=indices.dtype), torch.empty(rest)
    lists = map(array_of, (indices, values, *kept, *dropped))
    cpu_select.partition(cpu_select.room_for_counts(), k, *lists)
    return kept, dropped


def merge_split(left: Sparse, right: Sparse, k: int) -> tuple[Sparse, Sparse]:
    return split(*merge_add(*left, *right), k)


def gather(x: Tensor, indices: Tensor, *, block: Block) -> Tensor:
    values = torch.empty(indices.numel(), dtype=x.dtype)
    _check(
        cpu_lists.gather(*place_of(x, block), array_of(indices), array_of(values)),
        block,
    )
    return values


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block,
    marker: Marker | None,
    number: int,
) -> None:
    loans = None if marker is None else marker.scratch
    if marker is not None and isinstance(loans, Loans) and number in loans.loans:
        listed = (array_of(indices), array_of(values))
        _check(loans.add(number, x, marker, *listed), block)
        return
    words = _NO_WORDS if marker is None else _marks(marker, number).words
    given = (array_of(indices), array_of(values), np.float32(1), words)
    _check(cpu_lists.add_at(*place_of(x, block), *given), block)


def subtract_at_(x: Tensor, indices: Tensor, values: Tensor, *, block: Block) -> None:
    given = (array_of(indices), array_of(values), np.float32(-1), _NO_WORDS)
    _check(cpu_lists.add_at(*place_of(x, block), *given), block)


def leave_at_(
    x: Tensor, indices: Tensor, held: Tensor, sent: Tensor, *, block: Block
) -> None:
    given = (array_of(indices), array_of(held), array_of(sent))
    _check(cpu_lists.leave_at(*place_of(x, block), *given), block)


def keep_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    told: Tensor | None,
    holders: tuple[int, int],
    block: Block,
) -> None:
    # Nothing rounded off is nothing to write to memory that has long been cold.
    mine = reference.share_of(indices, values, told, holders)
    add_at_(x, *mine, block=block, marker=None, number=0)


def scatter_(
    out: Tensor, indices: Tensor, values: Tensor, *, block: Block, divisor: float
) -> None:
    quotient = values if divisor == 1.0 else values / divisor
    bits, rounded = out, quotient.to(out.dtype)
    if out.dtype != torch.float32:
        bits, rounded = out.view(torch.uint16), rounded.view(torch.uint16)
    given = (array_of(indices), array_of(rounded))
    _check(cpu_lists.scatter(*place_of(bits, block), *given), block)


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    mean = values / ranks
    starts = [0, *accumulate(piece.numel() for piece in pieces)]
    listed = array_of(indices)
    cuts = np.searchsorted(listed, np.array(starts, listed.dtype)).tolist()
    for piece, start, (low, high) in zip(pieces, starts, pairwise(cuts), strict=False):
        mine = (indices[low:high], mean[low:high])
        if start:
            mine = (mine[0] - start, mine[1])
        scatter_(piece, *mine, block=Block.whole(piece.numel()), divisor=1.0)
    return mean


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    chunk = dealt(tuple(blocks))
    if chunk < 0:
        return reference.join(lists, blocks)
    dtype = torch.int32 if sum(b.length for b in blocks) < 2**31 else torch.int64
    values = torch.cat([v for _, v in lists])
    if chunk == 0:
        shifted = [
            indices.to(dtype) + block.start
            for (indices, _), block in zip(lists, blocks, strict=True)
        ]
        return torch.cat(shifted), values
    local = torch.cat([indices for indices, _ in lists])
    cuts = [0, *accumulate(v.numel() for _, v in lists)]
    at, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    joined = torch.empty(local.numel(), dtype=dtype), torch.empty_like(values)
    given = (array_of(local), array_of(values), at, ends, chunk)
    cpu_lists.interleave(*given, *map(array_of, joined))
    return joined


def doubt_unless_(word: Tensor, section: Tensor, wanted: Tensor) -> None:
    reference.doubt_unless_(word, section, wanted)


def strictly_increasing(indices: Tensor, size: int) -> bool:
    if indices.numel() == 0:
        return True
    return bool(cpu_lists.strictly_increasing(array_of(indices), size))


def _check(inside: bool, block: Block) -> None:  # noqa: FBT001
    if not inside:
        raise IndexError(f"an index lies outside a block of {block.length} elements")
