"""Primitives of codecs: indices and values to bytes, and back without trust."""

from torch import Tensor

from thinwire.kernels.entry import backend, entered, processor


def pack_bits(values: Tensor, width: int) -> Tensor:
    """The low `width` bits (at most 63) of whole numbers, in bytes without gaps.

    Number i takes bits `i * width` to `(i + 1) * width`; the least significant comes
    first, in a number and in a byte.

    >>> import torch
    >>> pack_bits(torch.tensor([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    with entered("pack_bits"):
        return backend(values).pack_bits(values, width)  # type: ignore[no-any-return]


def unpack_bits(section: Tensor, count: int, width: int) -> Tensor:
    """`count` numbers of `width` bits, as int64; `ValueError` from too few bytes.

    >>> import torch
    >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 3, 4).tolist()
    [1, 2, 3]
    """
    with entered("unpack_bits"):
        return backend(section).unpack_bits(section, count, width)  # type: ignore[no-any-return]


def encode_bitmap(indices: Tensor, size: int) -> Tensor:
    """A bit for each of `size` elements, set where an index says; in whole bytes.

    The first element's bit is the least significant one of the first byte.

    >>> import torch
    >>> encode_bitmap(torch.tensor([0, 5, 8, 9, 14]), 16).tolist()
    [33, 67]
    """
    with entered("encode_bitmap"):
        return backend(indices).encode_bitmap(indices, size)  # type: ignore[no-any-return]


def decode_bitmap(section: Tensor, size: int, nnz: int) -> Tensor:
    """Which bits are set, or `ValueError` where there are not `nnz` below `size`."""
    with entered("decode_bitmap"):
        return backend(section).decode_bitmap(section, size, nnz)  # type: ignore[no-any-return]


def encode_elias_fano(indices: Tensor, size: int, low: int) -> Tensor:
    """The `low` low bits of every index, then one set bit for each: the high vector.

    Entry i sets bit `(index >> low) + i` of the vector, which has `nnz + (size >> low)`
    bits and follows the low bits without a gap.

    >>> import torch
    >>> encode_elias_fano(torch.tensor([0, 5, 8, 9, 14]), 16, low=1).tolist()
    [42, 25, 1]
    """
    with entered("encode_elias_fano"):
        return backend(indices).encode_elias_fano(indices, size, low)  # type: ignore[no-any-return]


def decode_elias_fano(section: Tensor, size: int, nnz: int, *, low: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_elias_fano"):
        return backend(section).decode_elias_fano(section, size, nnz, low=low)  # type: ignore[no-any-return]


def encode_packet(
    header: Tensor, indices: Tensor, values: Tensor, size: int, low: int | None
) -> Tensor:
    """A header, then `encode_elias_fano` and `to_bfloat16`, each filled to 8 bytes.

    Without `low`, indices are a bitmap. The header is bytes on the same device.

    >>> import torch
    >>> header, values = torch.zeros(8, dtype=torch.uint8), torch.tensor([1.0, -2.0])
    >>> encode_packet(header, torch.tensor([3, 8]), values, 10, low=None)[8:].tolist()
    [8, 1, 0, 0, 0, 0, 0, 0, 128, 63, 0, 192, 0, 0, 0, 0]
    """
    with entered("encode_packet"):
        return backend(indices).encode_packet(header, indices, values, size, low)  # type: ignore[no-any-return]


def decode_packet(
    body: Tensor, begin: int, size: int, nnz: int, *, low: int | None
) -> tuple[Tensor, Tensor]:
    """Indices and values of what `encode_packet` made, after a header of `begin` bytes.

    `ValueError` where these bytes cannot be such a list; there are as many as it takes.
    """
    with entered("decode_packet"):
        return backend(body).decode_packet(body, begin, size, nnz, low=low)  # type: ignore[no-any-return]


def encode_rice(indices: Tensor) -> Tensor:
    """Gaps in Rice codes: widths of blocks of 256, remainders, quotients in unary.

    A gap is the number of elements between an index and the one before. A block's width
    is a byte: so many low bits of each of its gaps are its remainders. The quotients
    are so many zeros each, and a one. The three streams follow without padding.

    >>> import torch
    >>> encode_rice(torch.tensor([3, 20, 30])).tolist()  # 4 * 0 + 3, 4 * 4, 4 * 2 + 1
    [2, 83, 72]
    """
    with entered("encode_rice"):
        return backend(indices).encode_rice(indices)  # type: ignore[no-any-return]


def decode_rice(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_rice"):
        return backend(section).decode_rice(section, size, nnz)  # type: ignore[no-any-return]


def encode_varint(indices: Tensor) -> Tensor:
    """Gaps in LEB128: seven bits a byte, low ones first; 128 says that more follow.

    >>> import torch
    >>> encode_varint(torch.tensor([5, 6, 400])).tolist()
    [5, 0, 137, 3]
    """
    with entered("encode_varint"):
        return backend(indices).encode_varint(indices)  # type: ignore[no-any-return]


def decode_varint(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_varint"):
        return backend(section).decode_varint(section, size, nnz)  # type: ignore[no-any-return]


def encode_runs(indices: Tensor, size: int) -> Tensor:
    """The run lengths of a bitmap, zeros first: how many (u32), width (u8), packed.

    Three zero bytes come before the packed lengths. Only the first can be zero.

    >>> import torch
    >>> encode_runs(torch.tensor([2, 3, 7]), 10).tolist()
    [5, 0, 0, 0, 2, 0, 0, 0, 122, 2]
    """
    with entered("encode_runs"):
        return backend(indices).encode_runs(indices, size)  # type: ignore[no-any-return]


def decode_runs(section: Tensor, size: int, nnz: int) -> Tensor:
    """The indices, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_runs"):
        return backend(section).decode_runs(section, size, nnz)  # type: ignore[no-any-return]


def to_bfloat16(values: Tensor) -> Tensor:
    """The nearest bfloat16, ties to even; finite values stay finite.

    >>> import torch
    >>> to_bfloat16(torch.tensor([1.005, -3.4e38, float("-inf")])).tolist()
    [1.0078125, -3.3895313892515355e+38, -inf]
    """
    with entered("to_bfloat16"):
        return backend(values).to_bfloat16(values)  # type: ignore[no-any-return]


def to_float16(values: Tensor) -> Tensor:
    """The nearest IEEE half, ties to even; finite values stay finite.

    >>> import torch
    >>> to_float16(torch.tensor([1.0003, 1e6, float("inf")])).tolist()
    [1.0, 65504.0, inf]
    """
    with entered("to_float16"):
        return backend(values).to_float16(values)  # type: ignore[no-any-return]


def encode_int8(values: Tensor) -> Tensor:
    """A bfloat16 scale for every 256 values, then the values as int8 of these scales.

    >>> import torch
    >>> encode_int8(torch.tensor([127.0, -63.4, 0.0])).tolist()
    [128, 63, 127, 193, 0]
    """
    with entered("encode_int8"):
        return backend(values).encode_int8(values)  # type: ignore[no-any-return]


def decode_int8(section: Tensor, nnz: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_int8"):
        return backend(section).decode_int8(section, nnz)  # type: ignore[no-any-return]


def encode_log(values: Tensor, bits: int) -> Tensor:
    """2**(bits - 1) levels as float32, then a level and a sign for each value.

    >>> import torch
    >>> section = encode_log(torch.tensor([1.0, -2.0, 4.0, 4.5]), 3)
    >>> section[:16].view(torch.float32).tolist(), section[16:].tolist()
    ([1.0, 2.0, 4.0, 4.5], [168, 6])
    """
    with entered("encode_log"):
        return backend(values).encode_log(values, bits)  # type: ignore[no-any-return]


def decode_log(section: Tensor, nnz: int, bits: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_log"):
        return backend(section).decode_log(section, nnz, bits)  # type: ignore[no-any-return]


def encode_qsgd(values: Tensor, levels: int, bucket: int, key: int) -> Tensor:
    """The L2 norm of each bucket, then values as random multiples of norm / levels.

    `key` and its place decide how a value is rounded.

    >>> import torch
    >>> section = encode_qsgd(torch.tensor([3.0, -4.0, 0.0, 12.0]), 127, 512, key=1)
    >>> section[:4].view(torch.float32).item(), section[4:].view(torch.int8).tolist()
    (13.0, [29, -39, 0, 117])
    """
    with entered("encode_qsgd"):
        return backend(values).encode_qsgd(values, levels, bucket, key)  # type: ignore[no-any-return]


def decode_qsgd(section: Tensor, nnz: int, levels: int, bucket: int) -> Tensor:
    """The values, or `ValueError` where these bytes cannot be such a list."""
    with entered("decode_qsgd"):
        return backend(section).decode_qsgd(section, nnz, levels, bucket)  # type: ignore[no-any-return]


def encode_bloom(indices: Tensor, bits: int, hashes: int) -> Tensor:
    """A filter in whole bytes, with the bits set that each index hashes to.

    The hash of seed 0, 1, ... is MurmurHash3 (x86, 32 bits) of the index in four
    little-endian bytes, modulo `bits`, which is below 2**32.

    >>> import torch
    >>> encode_bloom(torch.tensor([0, 5, 8, 9, 14]), 24, hashes=4).tolist()
    [201, 94, 98]
    """
    with entered("encode_bloom"):
        return backend(indices).encode_bloom(indices, bits, hashes)  # type: ignore[no-any-return]


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
    with entered("bloom_positives"):
        return backend(section).bloom_positives(  # type: ignore[no-any-return]
            section, size, most, bits=bits, hashes=hashes
        )


def bloom_sample(positives: Tensor, nnz: int, key: int) -> Tensor:
    """`nnz` of these indices, drawn with `key` (63 bits), still ascending.

    Runs on the processor, wherever the indices are.
    """
    with entered("bloom_sample"):
        sample = processor().bloom_sample(positives.cpu(), nnz, key)
        return sample.to(positives.device)  # type: ignore[no-any-return]


def bloom_resolve(
    positives: Tensor, nnz: int, key: int, *, bits: int, hashes: int
) -> Tensor:
    """The `nnz` of a filter's positives that best explain its bits, still ascending.

    Runs on the processor, wherever the indices are: each choice depends on those made
    before.
    """
    with entered("bloom_resolve"):
        chosen = processor().bloom_resolve(
            positives.cpu(), nnz, key, bits=bits, hashes=hashes
        )
        return chosen.to(positives.device)  # type: ignore[no-any-return]


def encode_poly(values: Tensor, degree: int, pieces: int) -> Tensor:
    """Descending values as a polynomial for each of a few pieces; in whole bytes.

    Runs on the processor, wherever the values are.
    """
    with entered("encode_poly"):
        section = processor().encode_poly(values.cpu(), degree, pieces)
        return section.to(values.device)  # type: ignore[no-any-return]


def decode_poly(section: Tensor, nnz: int) -> Tensor:
    """`nnz` finite values, or `ValueError` where these bytes cannot be such a list.

    >>> import torch
    >>> decode_poly(encode_poly(torch.arange(4.0, -5.0, -1.0), 1, 8), 9).tolist()
    [4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0]
    """
    with entered("decode_poly"):
        return processor().decode_poly(section.cpu(), nnz).to(section.device)  # type: ignore[no-any-return]


def encode_dexp(values: Tensor) -> Tensor:
    """Descending values as a sum of two exponentials for each sign; in whole bytes.

    Runs on the processor, wherever the values are.
    """
    with entered("encode_dexp"):
        return processor().encode_dexp(values.cpu()).to(values.device)  # type: ignore[no-any-return]


def decode_dexp(section: Tensor, nnz: int) -> Tensor:
    """`nnz` finite values, or `ValueError` where these bytes cannot be such a list.

    >>> import torch
    >>> decode_dexp(encode_dexp(torch.tensor([2.0, 0.0, -1.0])), 3).tolist()
    [2.0, 0.0, -1.0]
    """
    with entered("decode_dexp"):
        return processor().decode_dexp(section.cpu(), nnz).to(section.device)  # type: ignore[no-any-return]
