"""Bytes as the output of a general compressor.

A section is the length of the output as u64, the output, and at most seven zeros.
"""

import struct
import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from thinwire.wire import padded

_LENGTH = struct.Struct("<Q")


def encode_stream(octets: Tensor, compress: Callable[[bytes], bytes]) -> Tensor:
    """A section with the output of `compress` for these bytes."""
    stream = compress(octets.cpu().numpy().tobytes()) if len(octets) else b""
    section = bytearray(_LENGTH.pack(len(stream)) + stream)
    return torch.frombuffer(section, dtype=torch.uint8).to(octets.device)


def decode_stream(
    section: Tensor, nbytes: int, decompress: Callable[[bytes, int], bytes]
) -> Tensor:
    """The `nbytes` bytes of a section.

    `decompress` takes a stream and the expected number of bytes. It returns at most one
    byte more than that, and raises a `ValueError` for an invalid stream.
    """
    stream = _stream(section)
    if not nbytes:
        if stream:
            raise ValueError(f"a stream of {len(stream)} bytes where none is expected")
        return section.new_empty(0)
    octets = decompress(stream, nbytes)
    if len(octets) != nbytes:
        raise ValueError(f"a stream of {len(octets)} bytes where {nbytes} are expected")
    return torch.frombuffer(bytearray(octets), dtype=torch.uint8).to(section.device)


def inflated(stream: bytes, nbytes: int, window: int = zlib.MAX_WBITS) -> bytes:
    """What zlib compressed to a whole stream, if it is no more than `nbytes`."""
    inflater = zlib.decompressobj(window)
    try:
        octets = inflater.decompress(stream, nbytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"a stream that does not end after {nbytes} bytes")
    return octets


def _stream(section: Tensor) -> bytes:
    octets = section.cpu().numpy().tobytes()
    if len(octets) < _LENGTH.size:
        raise ValueError(f"no length in {len(octets)} bytes")
    end = _LENGTH.size + _LENGTH.unpack_from(octets)[0]
    if not end <= len(octets) <= padded(end) or any(octets[end:]):
        raise ValueError(f"a stream up to byte {end} in a section of {len(octets)}")
    return octets[_LENGTH.size : end]
