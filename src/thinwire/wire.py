"""Packet: the bytes that travel, versioned, 32 bytes of header.

Little endian, every section padded with zeros to 8 bytes:

    0  magic "TW"     2  version u8    3  flags u8, zero
    4  index tag u8   5  value tag u8  6  reserved u16, zero
    8  size u64      16  nnz u32      20  index section, in 8-byte words, u32
   24  whole packet, in 8-byte words, u32                28  reserved u32, zero
   32  index section, then value section

Nothing that arrives is believed: `Packet.parse` checks every field of the header
against the bytes at hand, a codec checks what only it can understand.
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.errors import ConfigError, WireError

MAGIC = b"TW"
VERSION = 1
WORD = 8
HEADER = struct.Struct("<2sBBBBHQIIII")

Tags = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded list: what its header says, and the whole of its bytes.

    >>> two = torch.tensor([7, 9], dtype=torch.int32).view(torch.uint8)
    >>> packet = Packet.build((1, 1), 100, 2, (two, two))
    >>> packet.body.numel(), Packet.parse(packet.body).nnz
    (48, 2)
    """

    tags: Tags
    size: int
    nnz: int
    index_nbytes: int
    body: Tensor

    @classmethod
    def build(
        cls, tags: Tags, size: int, nnz: int, sections: tuple[Tensor, Tensor]
    ) -> "Packet":
        """Put a header before an index section and a value section."""
        index, value = sections
        index_end = HEADER.size + padded(index.numel())
        nbytes = index_end + padded(value.numel())
        if nnz >= 2**32 or nbytes >= WORD * 2**32:
            raise ConfigError(
                f"a list of {nnz} entries in {nbytes} bytes does not fit one packet; "
                "lower the density or reduce the vector in parts"
            )
        body = torch.empty(nbytes, dtype=torch.uint8, device=value.device)
        words = (index_end - HEADER.size) // WORD, nbytes // WORD
        header = HEADER.pack(MAGIC, VERSION, 0, *tags, 0, size, nnz, *words, 0)
        body[: HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        _fill(body[HEADER.size : index_end], index)
        _fill(body[index_end:], value)
        return cls(tags, size, nnz, index_end - HEADER.size, body)

    @classmethod
    def parse(cls, body: Tensor) -> "Packet":
        """Read a header and check it against the bytes that came with it."""
        flags, index_tag, value_tag, reserved, *fields = _header(body)
        size, nnz, index_words, words, spare = fields
        if flags or reserved or spare:
            raise WireError("a packet sets bits that its format reserves")
        if words * WORD != body.numel():
            raise WireError(
                f"a packet says {words * WORD} bytes and has {body.numel()}"
            )
        index_nbytes = index_words * WORD
        if HEADER.size + index_nbytes > body.numel():
            raise WireError(f"an index section of {index_nbytes} bytes does not fit")
        if nnz > size:
            raise WireError(f"a packet lists {nnz} entries of a vector of {size}")
        return cls((index_tag, value_tag), size, nnz, index_nbytes, body)

    @staticmethod
    def announced(message: Tensor) -> int:
        """How many bytes the first of several packets in a row says it has."""
        nbytes = _header(message)[-2] * WORD
        if not HEADER.size <= nbytes <= message.numel():
            raise WireError(
                f"a packet says {nbytes} bytes where {message.numel()} are left"
            )
        return nbytes

    @property
    def sections(self) -> tuple[Tensor, Tensor]:
        """The index section and the value section, padding included."""
        payload = self.body[HEADER.size :]
        return payload[: self.index_nbytes], payload[self.index_nbytes :]


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole 8-byte words."""
    return -(-nbytes // WORD) * WORD


def _header(body: Tensor) -> tuple[int, ...]:
    if body.numel() < HEADER.size:
        raise WireError(
            f"a packet of {body.numel()} bytes is shorter than its header "
            f"({HEADER.size})"
        )
    magic, version, *fields = HEADER.unpack(body[: HEADER.size].cpu().numpy().tobytes())
    if magic != MAGIC:
        raise WireError(f"a packet begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise WireError(
            f"a packet of format {version}; this thinwire reads {VERSION}: "
            "run the same release on every rank"
        )
    return tuple(fields)


def _fill(room: Tensor, section: Tensor) -> None:
    room[: section.numel()] = section
    room[section.numel() :] = 0
