"""Lengths of packets that depend on the data, estimated on a sample."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from thinwire.codecs import Codec, CodecWrapper
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER

_ENTRIES = 4096
"""The bytes per entry of longer lists are those of a list of this length."""


@dataclass(frozen=True, slots=True)
class EstimatedCodec(CodecWrapper):
    """A codec for costs. Its sample has Laplace values at random indices."""

    codec: Codec

    def nbytes(self, size: int, nnz: int) -> int:
        """The estimated length of a packet."""
        if nnz == 0:
            return HEADER.size
        # A few densities only: blocks differ by an element.
        density = float(f"{nnz / size:.3g}")
        entries = min(nnz, _ENTRIES)
        body = nnz * _entry_nbytes(self.codec, density, entries)
        return HEADER.size + round(body)


@lru_cache(maxsize=1024)
def _entry_nbytes(codec: Codec, density: float, entries: int) -> float:
    generator = torch.Generator().manual_seed(0)
    size = max(entries, round(entries / density))
    drawn = torch.randperm(size, generator=generator)[:entries]
    indices, _ = drawn.to(torch.int32).sort()
    signs = torch.randint(0, 2, (entries,), generator=generator) * 2 - 1
    # Only what exceeds a threshold is sent, and Laplace's tail looks like its head.
    values = (1 + torch.empty(entries).exponential_(generator=generator)) * signs
    sample = SparseVector(indices, values, size)
    packet = codec.encode(sample, source=lambda found: torch.zeros(len(found)))
    return (packet.body.numel() - HEADER.size) / entries
