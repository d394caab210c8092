"""Primitives on raw tensors, entered here by name, run by the tensor's device.

Every primitive appears under its name in the PyTorch profiler, and in the `Stopwatch`
of whoever asked for one with `watched`: that is all the timing there is in the stages
above. `thinwire.kernels.reference` states what each primitive means; a fast backend
must return the same bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from types import ModuleType

from torch import Tensor
from torch.autograd import profiler

from thinwire.kernels.blocks import Block, contiguous_blocks, interleaved_blocks
from thinwire.kernels.marker import Marker

__all__ = [
    "Block",
    "Marker",
    "Sparse",
    "Stopwatch",
    "accumulate_",
    "add_at_",
    "bloom_positives",
    "bloom_resolve",
    "bloom_sample",
    "by_reference",
    "contiguous_blocks",
    "decode_bitmap",
    "decode_dexp",
    "decode_elias_fano",
    "decode_int8",
    "decode_log",
    "decode_poly",
    "decode_qsgd",
    "decode_rice",
    "decode_runs",
    "decode_varint",
    "encode_bitmap",
    "encode_bloom",
    "encode_dexp",
    "encode_elias_fano",
    "encode_int8",
    "encode_log",
    "encode_poly",
    "encode_qsgd",
    "encode_rice",
    "encode_runs",
    "encode_varint",
    "gather",
    "interleaved_blocks",
    "join",
    "magnitudes",
    "merge_add",
    "pack_bits",
    "scatter_",
    "select",
    "split",
    "strictly_increasing",
    "subtract_at_",
    "to_bfloat16",
    "to_float16",
    "unpack_bits",
    "watched",
]

Sparse = tuple[Tensor, Tensor]
Stopwatch = dict[str, float]

_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_by_reference: ContextVar[bool] = ContextVar("by_reference", default=False)


@contextmanager
def watched(stopwatch: Stopwatch) -> Iterator[None]:
    """Add the seconds of each primitive this thread enters to `stopwatch`."""
    token = _stopwatch.set(stopwatch)
    try:
        yield
    finally:
        _stopwatch.reset(token)


@contextmanager
def by_reference() -> Iterator[None]:
    """Run each primitive this thread enters by its reference: to compare, or to fuzz.

    >>> import torch
    >>> with by_reference():
    ...     select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)[0].tolist()
    [1, 2]
    """
    token = _by_reference.set(True)
    try:
        yield
    finally:
        _by_reference.reset(token)


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    """Largest |v| in each `vector[bounds[i] : bounds[i + 1]]`; NaN is infinity.

    >>> import torch
    >>> v = torch.tensor([1.0, -3.0, float("nan"), 0.5])
    >>> magnitudes(v, torch.tensor([0, 2, 3, 3, 4])).tolist()
    [3.0, inf, 0.0, 0.5]
    """
    with _entered("magnitudes"):
        return _backend(vector).magnitudes(vector, bounds)  # type: ignore[no-any-return]


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    marker: Marker | None = None,
) -> None:
    """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

    With a `marker`, candidates for selection are marked in the same pass.
    """
    with _entered("accumulate_"):
        _backend(x).accumulate_(x, grad, offset=offset, scale=scale, marker=marker)


def select(
    x: Tensor,
    k: int,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> Sparse:
    """The `k` largest |v| of a block, ties to the smaller index, indices ascending.

    Indices count within the block. `number` says which of the marker's blocks it is.

    >>> import torch
    >>> i, v = select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)
    >>> i.tolist(), v.tolist()
    ([1, 2], [-2.0, 2.0])
    """
    if marker is not None:
        block = marker.blocks[number]
    elif block is None:
        block = Block.whole(x.numel())
    with _entered("select"):
        return _backend(x).select(x, k, block=block, marker=marker, number=number)  # type: ignore[no-any-return]


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    """The sum of two sparse lists, indices strictly increasing in all three."""
    with _entered("merge_add"):
        return _backend(left).merge_add(left, left_values, right, right_values)  # type: ignore[no-any-return]


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    """The `k` entries of largest |v| (ties to the smaller index), and the others."""
    with _entered("split"):
        return _backend(values).split(indices, values, k)  # type: ignore[no-any-return]


def gather(x: Tensor, indices: Tensor, *, block: Block | None = None) -> Tensor:
    """What `x` holds at these elements of the block."""
    with _entered("gather"):
        return _backend(x).gather(x, indices, block=block or Block.whole(x.numel()))  # type: ignore[no-any-return]


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> None:
    """`x[indices] += values` in a block; with a marker, those elements are marked."""
    if marker is not None:
        block = marker.blocks[number]
    block = block or Block.whole(x.numel())
    with _entered("add_at_"):
        _backend(x).add_at_(
            x, indices, values, block=block, marker=marker, number=number
        )


def subtract_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    """`x[indices] -= values` in a block."""
    with _entered("subtract_at_"):
        _backend(x).subtract_at_(
            x, indices, values, block=block or Block.whole(x.numel())
        )


def scatter_(
    out: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    divisor: float = 1.0,
) -> None:
    """`out[indices] = values / divisor` in a block, rounded to the dtype of `out`."""
    with _entered("scatter_"):
        _backend(out).scatter_(
            out,
            indices,
            values,
            block=block or Block.whole(out.numel()),
            divisor=divisor,
        )


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    """One list of the vector from the lists of all its blocks, indices ascending.

    >>> import torch
    >>> evens, odds = torch.tensor([1], dtype=torch.int32), torch.tensor([0])
    >>> i, v = join(
    ...     [(evens, torch.tensor([2.0])), (odds.int(), torch.tensor([1.0]))],
    ...     interleaved_blocks(4, 2, chunk=1),
    ... )
    >>> i.tolist(), v.tolist()
    ([1, 2], [1.0, 2.0])
    """
    with _entered("join"):
        return _backend(lists[0][1]).join(lists, blocks)  # type: ignore[no-any-return]


def strictly_increasing(indices: Tensor, size: int) -> bool:
    """Whether these are valid indices of a sparse list over `size` elements."""
    with _entered("strictly_increasing"):
        return _backend(indices).strictly_increasing(indices, size)  # type: ignore[no-any-return]


def pack_bits(values: Tensor, width: int) -> Tensor:
    """The low `width` bits (at most 63) of whole numbers, in bytes without gaps.

    Number i takes bits `i * width` to `(i + 1) * width`; the least significant comes
    first, in a number and in a byte.

    >>> import torch
    >>> pack_bits(torch.tensor([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    with _entered("pack_bits"):
        return _backend(values).pack_bits(values, width)  # type: ignore[no-any-return]


def unpack_bits(section: Tensor, count: int, width: int) -> Tensor:
    """`count` numbers of `width` bits, as int64; `ValueError` from too few bytes.

    >>> import torch
    >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 3, 4).tolist()
    [1, 2, 3]
    """
    with _entered("unpack_bits"):
        return _backend(section).unpack_bits(section, count, width)  # type: ignore[no-any-return]


def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    """A bit for each of `size` elements, set where an index says; in whole bytes.

    The first element's bit is the least significant one of the first byte.

    >>> import torch
    >>> encode_bitmap(torch.tensor([0, 5, 8, 9, 14]), 16).tolist()
    [33, 67]
    """
    with _entered("encode_bitmap"):
        return _backend(indices).encode_bitmap(indices, size)  # type: ignore[no-any-return]


def decode_bitmap(section: Tensor, size: int, nnz: int) -> Tensor:
    """Which bits are set, or `ValueError` where there are not `nnz` below `size`."""
    with _entered("decode_bitmap"):
        return _backend(section).decode_bitmap(section, size, nnz)  # type: ignore[no-any-return]


def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    """The `low` low bits of every index, then one set bit for each: the high vector.

    Entry i sets bit `(index >> low) + i` of the vector, which has `nnz + (size >> low)`
    bits and follows the low bits without a gap.

    >>> import torch
    >>> encode_elias_fano(torch.tensor([0, 5, 8, 9, 14]), 16, low=1).tolist()
    [42, 25, 1]
    """
    with _entered("encode_elias_fano"):
        return _backend(indices).encode_elias_fano(indices, size, low)  # type: ignore[no-any-return]


def decode_elias_fano(section: Tensor, size: int, nnz: int, *, low: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_elias_fano"):
        return _backend(section).decode_elias_fano(section, size, nnz, low=low)  # type: ignore[no-any-return]


def encode_rice(indices: Tensor) -> Tensor:
    """Gaps in Rice codes: widths of blocks of 256, remainders, quotients in unary.

    A gap is the number of elements between an index and the one before. A block's width
    is a byte: so many low bits of each of its gaps are its remainders. The quotients
    are so many zeros each, and a one. The three streams follow without padding.

    >>> import torch
    >>> encode_rice(torch.tensor([3, 20, 30])).tolist()  # 4 * 0 + 3, 4 * 4, 4 * 2 + 1
    [2, 83, 72]
    """
    with _entered("encode_rice"):
        return _backend(indices).encode_rice(indices)  # type: ignore[no-any-return]


def decode_rice(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_rice"):
        return _backend(section).decode_rice(section, size, nnz)  # type: ignore[no-any-return]


def encode_varint(indices: Tensor) -> Tensor:
    """Gaps in LEB128: seven bits a byte, low ones first; 128 says that more follow.

    >>> import torch
    >>> encode_varint(torch.tensor([5, 6, 400])).tolist()
    [5, 0, 137, 3]
    """
    with _entered("encode_varint"):
        return _backend(indices).encode_varint(indices)  # type: ignore[no-any-return]


def decode_varint(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_varint"):
        return _backend(section).decode_varint(section, size, nnz)  # type: ignore[no-any-return]


def encode_runs(indices: Tensor, size: int) -> Tensor:
    """The run lengths of a bitmap, zeros first: how many (u32), width (u8), packed.

    Three zero bytes come before the packed lengths. Only the first can be zero.

    >>> import torch
    >>> encode_runs(torch.tensor([2, 3, 7]), 10).tolist()
    [5, 0, 0, 0, 2, 0, 0, 0, 122, 2]
    """
    with _entered("encode_runs"):
        return _backend(indices).encode_runs(indices, size)  # type: ignore[no-any-return]


def decode_runs(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_runs"):
        return _backend(section).decode_runs(section, size, nnz)  # type: ignore[no-any-return]


def to_bfloat16(values: Tensor) -> Tensor:
    """The nearest bfloat16, ties to even; finite values stay finite.

    >>> import torch
    >>> to_bfloat16(torch.tensor([1.005, -3.4e38, float("-inf")])).tolist()
    [1.0078125, -3.3895313892515355e+38, -inf]
    """
    with _entered("to_bfloat16"):
        return _backend(values).to_bfloat16(values)  # type: ignore[no-any-return]


def to_float16(values: Tensor) -> Tensor:
    """The nearest IEEE half, ties to even; finite values stay finite.

    >>> import torch
    >>> to_float16(torch.tensor([1.0003, 1e6, float("inf")])).tolist()
    [1.0, 65504.0, inf]
    """
    with _entered("to_float16"):
        return _backend(values).to_float16(values)  # type: ignore[no-any-return]


def encode_int8(values: Tensor) -> Tensor:
    """A bfloat16 scale for every 256 values, then the values as int8 of these scales.

    >>> import torch
    >>> encode_int8(torch.tensor([127.0, -63.4, 0.0])).tolist()
    [128, 63, 127, 193, 0]
    """
    with _entered("encode_int8"):
        return _backend(values).encode_int8(values)  # type: ignore[no-any-return]


def decode_int8(section: Tensor, nnz: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_int8"):
        return _backend(section).decode_int8(section, nnz)  # type: ignore[no-any-return]


def encode_log(values: Tensor, bits: int) -> Tensor:
    """2**(bits - 1) levels as float32, then a level and a sign for each value.

    >>> import torch
    >>> section = encode_log(torch.tensor([1.0, -2.0, 4.0, 4.5]), 3)
    >>> section[:16].view(torch.float32).tolist(), section[16:].tolist()
    ([1.0, 2.0, 4.0, 4.5], [168, 6])
    """
    with _entered("encode_log"):
        return _backend(values).encode_log(values, bits)  # type: ignore[no-any-return]


def decode_log(section: Tensor, nnz: int, bits: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_log"):
        return _backend(section).decode_log(section, nnz, bits)  # type: ignore[no-any-return]


def encode_qsgd(values: Tensor, levels: int, bucket: int, key: int) -> Tensor:
    """The L2 norm of each bucket, then values as random multiples of norm / levels.

    `key` and its place decide how a value is rounded.

    >>> import torch
    >>> section = encode_qsgd(torch.tensor([3.0, -4.0, 0.0, 12.0]), 127, 512, key=1)
    >>> section[:4].view(torch.float32).item(), section[4:].view(torch.int8).tolist()
    (13.0, [29, -39, 0, 117])
    """
    with _entered("encode_qsgd"):
        return _backend(values).encode_qsgd(values, levels, bucket, key)  # type: ignore[no-any-return]


def decode_qsgd(section: Tensor, nnz: int, levels: int, bucket: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with _entered("decode_qsgd"):
        return _backend(section).decode_qsgd(section, nnz, levels, bucket)  # type: ignore[no-any-return]


def encode_bloom(indices: Tensor, bits: int, hashes: int) -> Tensor:
    """A filter in whole bytes, with the bits set that each index hashes to.

    The hash of seed 0, 1, ... is MurmurHash3 (x86, 32 bits) of the index in four
    little-endian bytes, modulo `bits`, which is below 2**32.

    >>> import torch
    >>> encode_bloom(torch.tensor([0, 5, 8, 9, 14]), 24, hashes=4).tolist()
    [201, 94, 98]
    """
    with _entered("encode_bloom"):
        return _backend(indices).encode_bloom(indices, bits, hashes)  # type: ignore[no-any-return]


def bloom_positives(
    section: Tensor, size: int, most: int, *, bits: int, hashes: int
) -> Tensor:
    """The first `most` indices below `size` (at most 2**32) whose bits are all set.

    `ValueError` where these bytes are no filter of so many bits.

    >>> import torch
    >>> section = torch.tensor([201, 94, 98], dtype=torch.uint8)
    >>> bloom_positives(section, 16, most=4, bits=24, hashes=4).tolist()
    [0, 5, 8, 9]
    """
    with _entered("bloom_positives"):
        return _backend(section).bloom_positives(  # type: ignore[no-any-return]
            section, size, most, bits=bits, hashes=hashes
        )


def bloom_sample(positives: Tensor, nnz: int, key: int) -> Tensor:
    """`nnz` of these indices, drawn with `key` (63 bits), still ascending.

    Runs on the processor, wherever the indices are.
    """
    with _entered("bloom_sample"):
        sample = _processor().bloom_sample(positives.cpu(), nnz, key)
        return sample.to(positives.device)  # type: ignore[no-any-return]


def bloom_resolve(
    positives: Tensor, nnz: int, key: int, *, bits: int, hashes: int
) -> Tensor:
    """The `nnz` of a filter's positives that best explain its bits, still ascending.

    Runs on the processor, wherever the indices are: each choice depends on those made
    before.
    """
    with _entered("bloom_resolve"):
        chosen = _processor().bloom_resolve(
            positives.cpu(), nnz, key, bits=bits, hashes=hashes
        )
        return chosen.to(positives.device)  # type: ignore[no-any-return]


def encode_poly(values: Tensor, degree: int, pieces: int) -> Tensor:
    """Descending values as a polynomial for each of a few pieces; in whole bytes.

    Runs on the processor, wherever the values are.
    """
    with _entered("encode_poly"):
        section = _processor().encode_poly(values.cpu(), degree, pieces)
        return section.to(values.device)  # type: ignore[no-any-return]


def decode_poly(section: Tensor, nnz: int) -> Tensor:
    """`nnz` finite values, or `ValueError` where these bytes cannot be such a list.

    >>> import torch
    >>> decode_poly(encode_poly(torch.arange(4.0, -5.0, -1.0), 1, 8), 9).tolist()
    [4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0]
    """
    with _entered("decode_poly"):
        return _processor().decode_poly(section.cpu(), nnz).to(section.device)  # type: ignore[no-any-return]


def encode_dexp(values: Tensor) -> Tensor:
    """Descending values as a sum of two exponentials for each sign; in whole bytes.

    Runs on the processor, wherever the values are.
    """
    with _entered("encode_dexp"):
        return _processor().encode_dexp(values.cpu()).to(values.device)  # type: ignore[no-any-return]


def decode_dexp(section: Tensor, nnz: int) -> Tensor:
    """`nnz` finite values, or `ValueError` where these bytes cannot be such a list.

    >>> import torch
    >>> decode_dexp(encode_dexp(torch.tensor([2.0, 0.0, -1.0])), 3).tolist()
    [2.0, 0.0, -1.0]
    """
    with _entered("decode_dexp"):
        return _processor().decode_dexp(section.cpu(), nnz).to(section.device)  # type: ignore[no-any-return]


def _backend(tensor: Tensor) -> ModuleType:
    return _processor() if tensor.device.type == "cpu" else _reference()


def _processor() -> ModuleType:
    if _by_reference.get():
        return _reference()
    from thinwire.kernels import cpu

    return cpu


def _reference() -> ModuleType:
    from thinwire.kernels import reference

    return reference


@contextmanager
def _entered(name: str) -> Iterator[None]:
    stopwatch = _stopwatch.get()
    start = perf_counter()
    # Asking first saves 20 us an entry: as much as many a list takes.
    if profiler._is_profiler_enabled:  # noqa: SLF001 - the flag has no public name
        with profiler.record_function(f"thinwire::{name}"):
            yield
    else:
        yield
    if stopwatch is not None:
        stopwatch[name] = stopwatch.get(name, 0.0) + perf_counter() - start
