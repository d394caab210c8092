"""What a decoder may answer to any bytes at all: a refusal, or a list that is valid."""

from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS
from thinwire.codecs import Bloom, Split
from thinwire.errors import WireError
from thinwire.wire import HEADER, WORD, Packet

Bits = tuple[bytes, bytes]
"""The indices and the values of a list."""

_INDEX = {codec.tag: codec for codec in INDEX_CODECS.values()}
_VALUE = {codec.tag: codec for codec in VALUE_CODECS.values()}
# What these send of numbers that are not finite is just these.
_ANYTHING = {VALUE_CODECS[name].tag for name in ("float32", "bfloat16", "float16")}
_ANYTHING |= {VALUE_CODECS[name].tag for name in ("deflate", "zstd")}

# What a receiver expects. A filter is asked for every element: its vectors are small.
_LARGEST = 2**40
_LARGEST_ASKED = 2**12

_LONGEST = 2**13


def verdict(packet: Packet) -> Bits | None:
    """The list that a packet decodes to, or None where it is refused.

    Anything else is a mistake of the decoder, and raised.
    """
    codec = Split(_INDEX[packet.tags[0]], _VALUE[packet.tags[1]], checksum=False)
    try:
        vector = codec.decode(packet, packet.size)
    except WireError:
        return None
    indices, values = vector.indices, vector.values
    wide = torch.int32 if packet.size < 2**31 else torch.int64
    assert (indices.dtype, values.dtype) == (wide, torch.float32)
    assert len(indices) == len(values)
    assert len(values) == packet.nnz or codec.index == Bloom("p0")
    assert kernels.strictly_increasing(indices, packet.size)
    assert packet.tags[1] in _ANYTHING or bool(values.isfinite().all())
    return indices.numpy().tobytes(), values.numpy().tobytes()


def both(packet: Packet) -> tuple[Bits | None, Bits | None]:
    """The verdicts of the fast decoders and of the reference."""
    fast = verdict(packet)
    with kernels.by_reference():
        return fast, verdict(packet)


def reaching(data: bytes) -> Packet:
    """These bytes as a packet, with a header that lets a decoder see the rest.

    Tags and numbers are taken from the header as far as they can be. Where the reserved
    bits are an even number, sections get the length that their codecs expect.
    """
    data = data.ljust(HEADER.size, b"\0")
    data += bytes(-len(data) % WORD)
    fields = HEADER.unpack_from(data)
    tags = _known(fields[3], _INDEX), _known(fields[4], _VALUE)
    reserved, size, nnz, words = fields[5:9]
    size = min(size, _most(tags[0]))
    nnz = min(nnz, size)
    payload = tensor_of(data)[HEADER.size :]
    index, value = payload[: words * WORD], payload[words * WORD :]
    if reserved % 2 == 0:
        index = _cut(index, _INDEX[tags[0]].nbytes(size, nnz))
        value = _cut(value, _VALUE[tags[1]].nbytes(nnz))
    return Packet.build(tags, size, nnz, (index, value))


def tensor_of(data: bytes) -> Tensor:
    """Bytes as they come from a group."""
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _cut(section: Tensor, nbytes: int | None) -> Tensor:
    if nbytes is None or nbytes > _LONGEST:
        return section
    cut = torch.zeros(nbytes, dtype=torch.uint8)
    length = min(nbytes, len(section))
    cut[:length] = section[:length]
    return cut


def _known(tag: int, codecs: Mapping[int, object]) -> int:
    return tag if tag in codecs else sorted(codecs)[tag % len(codecs)]


def _most(tag: int) -> int:
    return _LARGEST_ASKED if isinstance(_INDEX[tag], Bloom) else _LARGEST
