"""Indices under a Huffman code of their bytes: 18 to 25 bits each, and no error.

The baseline of DeepReduce (Xu et al., NeurIPS 2021, section 6): only high bytes that
repeat take fewer bits. The code is zlib's, without its search for repeated strings. A
section is the length of the deflate stream, u64, and the stream
of all lowest bytes, then all second ones, and so on: 2 to 4 bits per index less than
the bytes of one index after those of another, because zlib renews its code as it goes.

The bytes depend on the release of zlib; what they decode to does not.
"""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, checked
from thinwire.codecs.stream import decode_stream, encode_stream, inflated
from thinwire.errors import ConfigError, WireError

_RAW = -15  # a bare deflate stream: no header, no checksum of its own
_LEVEL = 6
# How often the code is renewed: every 8192 bytes. Half as often is up to 2 bits per
# index more, twice as often 1 bit less and half the speed.
_MEMORY = 6


@dataclass(frozen=True, slots=True)
class Huffman(IndexCodec):
    """The four bytes of every index; frequent bytes take fewer bits."""

    tag = 7

    def encode(self, indices: Tensor, size: int) -> Tensor:
        if size > 2**31:
            raise ConfigError(
                f"a vector of {size} elements has indices beyond 32 bits; "
                'use scope="bucket" so that it is reduced in parts'
            )
        rows = indices.to(torch.int32).view(torch.uint8).view(-1, 4)
        return encode_stream(rows.t().reshape(-1), _deflated)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        with checked("Huffman"):
            planes = decode_stream(section, 4 * nnz, _inflated)
        rows = planes.view(4, nnz).t().reshape(-1)
        indices = rows.view(torch.int32).to(kernels.index_dtype(size))
        if not kernels.strictly_increasing(indices, size):
            raise WireError(
                f"Huffman: indices that do not increase strictly from 0 up to {size}"
            )
        return indices


def _deflated(octets: bytes) -> bytes:
    coder = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, _MEMORY, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(octets) + coder.flush()


def _inflated(stream: bytes, nbytes: int) -> bytes:
    return inflated(stream, nbytes, _RAW)
