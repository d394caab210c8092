"""Packet: an encoded list as bytes: a header of 32 bytes and two sections.

Little endian, every section padded with zeros to 8 bytes:

    0  magic "TW"     2  version u8    3  flags u8: 1 says that there is a checksum
    4  index tag u8   5  value tag u8  6  reserved u16, zero
    8  size u64      16  nnz u32      20  index section, in 8-byte words, u32
   24  whole packet, in 8-byte words, u32                28  checksum u32, or zero
   32  index section, then value section

The checksum is the low half of XXH3-64 over the packet with this field zero.

`Packet.parse` checks every field of a received header against the bytes; the codec
checks the sections.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire import kernels
from thinwire.errors import ConfigError, WireError

MAGIC = b"TW"
VERSION = 1
WORD = 8
SUMMED = 1  # the flag that says there is a checksum
HEADER = struct.Struct("<2sBBBBHQIIII")

Tags = tuple[int, int]
Octets = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded list: the fields of its header, and all of its bytes.

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
    summed: bool = False
    errors: Tensor | None = None
    finite: bool = False

    @classmethod
    def build(
        cls,
        tags: Tags,
        size: int,
        nnz: int,
        sections: tuple[Tensor, Tensor],
        *,
        checksum: bool = False,
    ) -> "Packet":
        """Put a header before an index section and a value section.

        A packet in device memory gets no checksum: it would have to be fetched.
        """
        index, value = sections
        summed = checksum and value.is_cpu
        lengths = index.numel(), value.numel()
        header = header_of(tags, size, nnz, lengths, summed=summed)
        index_end = HEADER.size + padded(lengths[0])
        nbytes = index_end + padded(lengths[1])
        body = torch.empty(nbytes, dtype=torch.uint8, device=value.device)
        # NumPy's views, where they will do, are made in a fraction of the time.
        room: Any = body.numpy() if body.is_cpu else body
        room[: HEADER.size] = (
            np.frombuffer(header, np.uint8)
            if body.is_cpu
            else kernels.on_device(header, body.device)
        )
        _fill(room[HEADER.size : index_end], index.numpy() if body.is_cpu else index)
        _fill(room[index_end:], value.numpy() if body.is_cpu else value)
        if summed:
            sum_up_(body)
        return cls(tags, size, nnz, index_end - HEADER.size, body, summed)

    @classmethod
    def parse(
        cls,
        body: Tensor,
        header: bytes | None = None,
        errors: Tensor | None = None,
        *,
        finite: bool = False,
    ) -> "Packet":
        """Read a header and check it against the bytes that came with it.

        With a `header`, that one is read and the bytes are not fetched from a device.
        Decoders may set the flag `errors` instead of raising an error. If `finite`,
        they refuse values that are not.
        """
        flags, index_tag, value_tag, reserved, *fields = _header(body, header)
        size, nnz, index_words, words, checksum = fields
        summed = flags == SUMMED
        if flags & ~SUMMED or reserved or (checksum and not summed):
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
        if body.data_ptr() % WORD or body.storage_offset() % WORD:
            body = body.clone()  # where sections can be read as numbers
        if summed:
            _verify(body, checksum)
        tags = index_tag, value_tag
        return cls(tags, size, nnz, index_nbytes, body, summed, errors, finite)

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


@lru_cache(maxsize=1024)
def header_of(
    tags: Tags, size: int, nnz: int, nbytes: tuple[int, int], *, summed: bool = False
) -> bytes:
    """The header of a packet whose two sections are so long; its checksum is zero."""
    index, value = map(padded, nbytes)
    whole = HEADER.size + index + value
    _check_fits(nnz, whole)
    words = index // WORD, whole // WORD
    flags = SUMMED * summed
    return HEADER.pack(MAGIC, VERSION, flags, *tags, 0, size, nnz, *words, 0)


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole 8-byte words."""
    return -(-nbytes // WORD) * WORD


def _check_fits(nnz: int, nbytes: int) -> None:
    if nnz >= 2**32 or nbytes >= WORD * 2**32:
        raise ConfigError(
            f"a list of {nnz} entries in {nbytes} bytes does not fit one packet; "
            "lower the density or reduce the vector in parts"
        )


def _header(body: Tensor, header: bytes | None = None) -> tuple[int, ...]:
    if body.numel() < HEADER.size:
        raise WireError(
            f"a packet of {body.numel()} bytes is shorter than its header "
            f"({HEADER.size})"
        )
    read: Any = header
    if header is None:
        # NumPy's views are made sooner than torch's.
        plain = body.is_cpu and body.is_contiguous()
        read = body.numpy() if plain else body[: HEADER.size].cpu().numpy().tobytes()
    magic, version, *fields = HEADER.unpack_from(read)
    if magic != MAGIC:
        raise WireError(f"a packet begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise WireError(
            f"a packet of format {version}; this thinwire reads {VERSION}: "
            "run the same release on every rank"
        )
    return tuple(fields)


def sum_up_(body: Tensor) -> None:
    """Write the checksum into a packet whose header is complete but for it."""
    octets: Octets = body.numpy()
    octets[HEADER.size - 4 : HEADER.size].view("<u4")[0] = kernels.packet_checksum(body)


def _verify(body: Tensor, checksum: int) -> None:
    found = kernels.packet_checksum((body if body.is_cpu else body.cpu()).contiguous())
    if found != checksum:
        raise WireError(
            f"a packet whose checksum is {found:08x} says {checksum:08x}: it was "
            "damaged on its way"
        )


def _fill(room: Any, section: Any) -> None:
    """Copy a section of arrays, or of tensors, and zeros after it."""
    room[: len(section)] = section
    room[len(section) :] = 0
