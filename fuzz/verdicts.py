"""The allowed results of a decoder for any bytes: an error, or a valid list."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS
from thinwire.codecs import QSGD, Bloom, FitPoly, IndexCodec, Split, ValueCodec
from thinwire.codecs.bloom import POLICIES
from thinwire.errors import WireError
from thinwire.wire import HEADER, WORD, Packet, Tags, padded

C = TypeVar("C", IndexCodec, ValueCodec)

Bits = tuple[bytes, bytes]
"""The indices and the values of a list."""

# What packets do not say: the same tags with other settings.
_INDEX_SETTINGS = [Bloom(policy, fpr) for policy in POLICIES for fpr in (0.3, 0.001)]
_VALUE_SETTINGS: list[ValueCodec] = [QSGD(200, 7), QSGD(2**15 - 1, 3)]
_VALUE_SETTINGS += [FitPoly(0, 3), FitPoly(15)]

# Value codecs that send values that are not finite unchanged.
_ANYTHING = {VALUE_CODECS[name].tag for name in ("float32", "bfloat16", "float16")}
_ANYTHING |= {VALUE_CODECS[name].tag for name in ("deflate", "zstd")}

# The sizes of vectors. Decoding a filter scans all elements, so its vectors are small.
_LARGEST = 2**40
_LARGEST_SCANNED = 2**12

_LONGEST = 2**13


def _by_tag(codecs: Iterable[C]) -> dict[int, list[C]]:
    found: dict[int, list[C]] = {}
    for codec in codecs:
        found.setdefault(codec.tag, []).append(codec)
    return found


_INDEX = _by_tag([*INDEX_CODECS.values(), *_INDEX_SETTINGS])
_VALUE = _by_tag([*VALUE_CODECS.values(), *_VALUE_SETTINGS])


class Received(NamedTuple):
    """A packet, and the codec that was agreed."""

    codec: Split
    packet: Packet


# Where a header has bits to spare, and numbers there that choose every setting.
RESERVED = 6
SETTINGS = (0, 0b010010, 0b100100)


def codec_of(tags: Tags, settings: int) -> Split:
    """A codec with these tags, and settings as an even number chooses them."""
    index, value = _INDEX[tags[0]], _VALUE[tags[1]]
    return Split(
        index[(settings >> 1 & 7) % len(index)],
        value[(settings >> 4 & 7) % len(value)],
        checksum=False,
    )


def verdict(received: Received) -> Bits | None:
    """The list that a packet decodes to, or None where it is refused.

    Anything else is an error of the decoder, and raised.
    """
    codec, packet = received
    try:
        vector = codec.decode(packet, packet.size)
    except WireError:
        return None
    indices, values = vector.indices, vector.values
    wide = torch.int32 if packet.size < 2**31 else torch.int64
    assert (indices.dtype, values.dtype) == (wide, torch.float32)
    assert len(indices) == len(values)
    assert len(values) == packet.nnz or packet.tags[0] == Bloom("p0").tag
    assert kernels.strictly_increasing(indices, packet.size)
    assert packet.tags[1] in _ANYTHING or bool(values.isfinite().all())
    index, value = packet.sections
    _check_whole(index, codec.index.nbytes(packet.size, packet.nnz))
    _check_whole(value, codec.value.nbytes(len(values)))
    return indices.numpy().tobytes(), values.numpy().tobytes()


def both(received: Received) -> tuple[Bits | None, Bits | None]:
    """The verdicts of the fast decoders and of the reference."""
    fast = verdict(received)
    with kernels.by_reference():
        return fast, verdict(received)


def reaching(data: bytes) -> Received:
    """These bytes as a packet, with a header that lets a decoder see the rest.

    Tags and numbers are taken from the header as far as they can be. The reserved bits
    choose the codecs' settings; where they are an even number, sections get the length
    that these expect.
    """
    data = data.ljust(HEADER.size, b"\0")
    data += bytes(-len(data) % WORD)
    fields = HEADER.unpack_from(data)
    tags = _known(fields[3], _INDEX), _known(fields[4], _VALUE)
    reserved, size, nnz, words = fields[5:9]
    codec = codec_of(tags, reserved)
    size = min(size, _most(tags[0]))
    nnz = min(nnz, size)
    payload = tensor_of(data)[HEADER.size :]
    index, value = payload[: words * WORD], payload[words * WORD :]
    if reserved % 2 == 0:
        index = _cut(index, codec.index.nbytes(size, nnz))
        value = _cut(value, codec.value.nbytes(nnz))
    return Received(codec, Packet.build(tags, size, nnz, (index, value)))


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
    return _LARGEST_SCANNED if isinstance(_INDEX[tag][0], Bloom) else _LARGEST


def _check_whole(section: Tensor, nbytes: int | None) -> None:
    """Check that an accepted section has its length and is padded with zeros."""
    if nbytes is not None:
        assert len(section) == padded(nbytes)
        assert not section[nbytes:].any()
