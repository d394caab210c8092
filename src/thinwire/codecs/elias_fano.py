"""Elias-Fano: half a bit per index above the least possible, of fixed length.

P. Elias, Efficient storage and retrieval by content and address of static files, JACM
1974. The low bits of an index are written as they are, the high bits as the distance
between ones: entry i sets bit `(index >> low) + i` of a vector.

Where a bitmap is not larger, from a quarter of the elements on, it is used instead.
"""

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.bitmap import Bitmap
from thinwire.codecs.codec import IndexCodec, checked


@dataclass(frozen=True, slots=True)
class EliasFano(IndexCodec):
    """Low bits, then the high vector; size and nnz determine the format."""

    tag = 3

    def nbytes(self, size: int, nnz: int) -> int:
        return -(-min(size, _nbits(size, nnz)) // 8)

    def encode(self, indices: Tensor, size: int) -> Tensor:
        low = low_bits_unless_bitmap(size, indices.numel())
        if low is None:
            return Bitmap().encode(indices, size)
        return kernels.encode_elias_fano(indices, size, low)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        return self.decode_deferring(section, size, nnz, None)

    def decode_deferring(
        self, section: Tensor, size: int, nnz: int, errors: Tensor | None
    ) -> Tensor:
        low = low_bits_unless_bitmap(size, nnz)
        if low is None:
            return Bitmap().decode_deferring(section, size, nnz, errors)
        with checked("Elias-Fano"):
            return kernels.decode_elias_fano(section, size, nnz, low=low, errors=errors)


def low_bits(size: int, nnz: int) -> int:
    """How many bits to write as they are: the fewest that make the section smallest.

    One more bit costs `nnz` and takes half of `size >> low` off the high vector.

    >>> low_bits(16, 5), low_bits(1_000_000, 10_000), low_bits(1_000_000, 0)
    (1, 6, 20)
    """
    low = max(size.bit_length() - (2 * nnz).bit_length(), 0)
    return low + (size >> low > 2 * nnz)


def low_bits_unless_bitmap(size: int, nnz: int) -> int | None:
    """As many low bits, or None where a bitmap is not larger.

    >>> low_bits_unless_bitmap(16, 3), low_bits_unless_bitmap(16, 5)
    (2, None)
    """
    return None if size <= _nbits(size, nnz) else low_bits(size, nnz)


@lru_cache
def _nbits(size: int, nnz: int) -> int:
    low = low_bits(size, nnz)
    return nnz * (low + 1) + (size >> low)
