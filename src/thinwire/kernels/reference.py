# ruff: noqa: D103, because the front door documents each function.
"""Every kernel in plain torch with a stable sort: slow, obvious, right on any device.

The oracle that the fast backends are tested against, and what runs on a device that
has no backend of its own yet.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.marker import Marker
from thinwire.kernels.reference_bits import pack_bits, unpack_bits  # noqa: F401
from thinwire.kernels.reference_bloom import (  # noqa: F401
    bloom_positives,
    bloom_resolve,
    bloom_sample,
    encode_bloom,
)
from thinwire.kernels.reference_dexp import decode_dexp, encode_dexp  # noqa: F401
from thinwire.kernels.reference_elias_fano import (  # noqa: F401
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
)
from thinwire.kernels.reference_halves import to_bfloat16, to_float16  # noqa: F401
from thinwire.kernels.reference_int8 import decode_int8, encode_int8  # noqa: F401
from thinwire.kernels.reference_log import decode_log, encode_log  # noqa: F401
from thinwire.kernels.reference_packet import (  # noqa: F401
    decode_packet,
    encode_packet,
)
from thinwire.kernels.reference_peel import (  # noqa: F401
    estimate_rows,
    peel_rows_,
    set_bits,
    sketch_rows,
)
from thinwire.kernels.reference_poly import decode_poly, encode_poly  # noqa: F401
from thinwire.kernels.reference_qsgd import decode_qsgd, encode_qsgd  # noqa: F401
from thinwire.kernels.reference_rice import decode_rice, encode_rice  # noqa: F401
from thinwire.kernels.reference_runs import decode_runs, encode_runs  # noqa: F401
from thinwire.kernels.reference_sketch import (  # noqa: F401
    encode_sketch,
    estimate_sketch_,
    shuffled,
    sketch_energy,
)
from thinwire.kernels.reference_varint import decode_varint, encode_varint  # noqa: F401
from thinwire.kernels.trees import added_up

Sparse = tuple[Tensor, Tensor]


def positions(indices: Tensor, block: Block) -> Tensor:
    """Where the block's elements lie in the vector, as int64."""
    local = indices.long()
    if block.contiguous:
        return local + block.start
    return block.start + (local // block.chunk) * block.stride + local % block.chunk


def magnitude_bits(values: Tensor) -> Tensor:
    """Integers in the order of |v|: NaN above infinity, -0.0 equal to 0.0."""
    return values.contiguous().view(torch.int32) & 0x7FFFFFFF


def by_magnitude(values: Tensor) -> Tensor:
    """The order of selection: larger |v| first, then smaller index."""
    return torch.sort(magnitude_bits(values), descending=True, stable=True).indices


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    edges = bounds.tolist()
    result = torch.zeros(len(edges) - 1, device=vector.device)
    for i, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            result[i] = vector[low:high].float().abs().max()
    return result.nan_to_num_(nan=float("inf"), posinf=float("inf"))


def row_peaks(vector: Tensor, width: int) -> Tensor:
    whole = vector.numel() // width * width
    peaks = vector[:whole].view(-1, width).abs().amax(1)
    if whole < vector.numel():
        peaks = torch.cat([peaks, vector[whole:].abs().amax(0, keepdim=True)])
    return peaks.float().nan_to_num_(nan=float("inf"), posinf=float("inf"))


def at_least(x: Tensor, least: float) -> Tensor:
    bits = max(int(magnitude_bits(torch.tensor([least]))), 1)
    found = (magnitude_bits(x) >= bits).nonzero().view(-1)
    return _index_dtype(found, x.numel())


def accumulate_(
    x: Tensor, grad: Tensor, *, offset: int, scale: float, marker: Marker | None
) -> None:
    part = x[offset : offset + grad.numel()]
    if scale != 1.0:
        part.mul_(scale)
    part.add_(grad)
    grad.zero_()
    if marker is not None:
        # The reference selects by sorting, so it marks nothing.
        marker.valid = [False] * len(marker.blocks)


def select(
    x: Tensor, k: int, *, block: Block, marker: Marker | None, number: int
) -> Sparse:
    del marker, number
    every = torch.arange(block.length, device=x.device)
    values = x[positions(every, block)]
    indices = by_magnitude(values)[:k].sort().values
    return _index_dtype(indices, block.length), values[indices]


def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int],
    rounding: torch.dtype,
) -> list[Sparse]:
    taken = []
    for k, number in zip(counts, numbers, strict=True):
        block = marker.blocks[number]
        indices, values = select(x, k, block=block, marker=marker, number=number)
        told = values if rounding == torch.float32 else to_bfloat16(values).float()
        subtract_at_(x, indices, told, block=block)
        taken.append((indices, values))
    return taken


def reclaim_(x: Tensor, marker: Marker) -> None:
    del x
    marker.forget()


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    both = torch.cat([left, right])
    indices, slot = torch.unique(both, return_inverse=True)
    # Left first, then right, each without duplicates: one addition at most per slot.
    # What only the right lists is added to -0.0, which changes nothing, not even -0.0.
    values = torch.full((len(indices),), -0.0, device=both.device)
    values[slot[: len(left)]] = left_values
    values[slot[len(left) :]] += right_values
    return indices, values


def merge_all(lists: Sequence[Sparse]) -> Sparse:
    return added_up(lists, lambda left, right: merge_add(*left, *right))


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    order = by_magnitude(values)
    kept, dropped = order[:k].sort().values, order[k:].sort().values
    return (indices[kept], values[kept]), (indices[dropped], values[dropped])


def merge_split(left: Sparse, right: Sparse, k: int) -> tuple[Sparse, Sparse]:
    return split(*merge_add(*left, *right), k)


def gather(x: Tensor, indices: Tensor, *, block: Block) -> Tensor:
    return x[positions(indices, block)]


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block,
    marker: Marker | None,
    number: int,
) -> None:
    if marker is not None:
        marker.valid[number] = False
    x[positions(indices, block)] += values


def subtract_at_(x: Tensor, indices: Tensor, values: Tensor, *, block: Block) -> None:
    x[positions(indices, block)] -= values


def leave_at_(
    x: Tensor, indices: Tensor, held: Tensor, sent: Tensor, *, block: Block
) -> None:
    x[positions(indices, block)] = held - sent


def keep_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    told: Tensor | None,
    holders: tuple[int, int],
    block: Block,
) -> None:
    indices, share = share_of(indices, values, told, holders)
    there = indices >= 0
    x[positions(indices[there], block)] += share[there]


def share_of(
    indices: Tensor, values: Tensor, told: Tensor | None, holders: tuple[int, int]
) -> Sparse:
    """What one of several holders keeps of values that were not told, or not whole."""
    count, number = holders
    if told is not None:
        off = values - told
        some = off != 0
        indices, values = indices[some], off[some]
    if count & (count - 1) == 0:
        return indices, values if count == 1 else values / count
    mine = indices % count == number
    return indices[mine], values[mine]


def scatter_(
    out: Tensor, indices: Tensor, values: Tensor, *, block: Block, divisor: float
) -> None:
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    quotient = values / torch.tensor(divisor, dtype=values.dtype, device=values.device)
    out[positions(indices, block)] = quotient.to(out.dtype)


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    # A tensor, because CUDA multiplies by the reciprocal of a number.
    mean = values / torch.tensor(float(ranks), device=values.device)
    start = 0
    for piece in pieces:
        here = (indices >= start) & (indices < start + piece.numel())
        piece[indices[here].long() - start] = mean[here].to(piece.dtype)
        start += piece.numel()
    return mean


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    places = [
        positions(indices, block)
        for (indices, _), block in zip(lists, blocks, strict=True)
    ]
    indices, order = torch.cat(places).sort()
    size = sum(block.length for block in blocks)
    return _index_dtype(indices, size), torch.cat([v for _, v in lists])[order]


def doubt_unless_(word: Tensor, section: Tensor, wanted: Tensor) -> None:
    word.bitwise_or_((section != wanted).any())


def strictly_increasing(indices: Tensor, size: int) -> bool:
    if len(indices) == 0:
        return True
    ascending = bool((indices[1:] > indices[:-1]).all())
    return ascending and int(indices[0]) >= 0 and int(indices[-1]) < size


def _index_dtype(indices: Tensor, size: int) -> Tensor:
    return indices.to(torch.int32 if size < 2**31 else torch.int64)
