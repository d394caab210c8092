"""SparseVector: a list of indices and values, as ranks exchange it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import Block


@dataclass(frozen=True, slots=True)
class SparseVector:
    """A vector of `size` elements of which `nnz` are listed, in float32.

    `indices` are strictly increasing, int32 where `size` < 2**31, else int64; an entry
    may be zero. The constructor does not check: a decoder of received bytes checks
    indices with `kernels.strictly_increasing`.

    >>> a = SparseVector.of({1: 2.0, 4: -1.0}, size=6)
    >>> b = SparseVector.of({1: 3.0, 2: 0.5}, size=6)
    >>> a.add(b).to_dict()
    {1: 5.0, 2: 0.5, 4: -1.0}
    >>> kept, dropped = a.add(b).split(2)
    >>> kept.to_dict(), dropped.to_dict()
    ({1: 5.0, 4: -1.0}, {2: 0.5})
    """

    indices: Tensor
    values: Tensor
    size: int

    @classmethod
    def of(cls, entries: dict[int, float], size: int) -> "SparseVector":
        """A vector from its entries, by index."""
        indices = sorted(entries)
        return cls(
            torch.tensor(indices, dtype=kernels.index_dtype(size)),
            torch.tensor([entries[i] for i in indices], dtype=torch.float32),
            size,
        )

    @property
    def nnz(self) -> int:
        """How many entries are listed."""
        return self.values.numel()

    def add(self, other: "SparseVector") -> "SparseVector":
        """The sum, listing every index that either lists."""
        merged = kernels.merge_add(
            self.indices, self.values, other.indices, other.values
        )
        return SparseVector(*merged, self.size)

    def subtract(self, other: "SparseVector") -> "SparseVector":
        """The difference, listing every index that either lists."""
        return self.add(SparseVector(other.indices, -other.values, other.size))

    def split(self, k: int) -> tuple["SparseVector", "SparseVector"]:
        """The `k` largest entries by magnitude, and the others."""
        kept, dropped = kernels.split(self.indices, self.values, k)
        return SparseVector(*kept, self.size), SparseVector(*dropped, self.size)

    def filled(self, k: int) -> "SparseVector":
        """Pad to `k` entries with zeros, at the smallest indices that are not listed.

        >>> SparseVector.of({1: 5.0}, size=4).filled(3).to_dict()
        {0: 0.0, 1: 5.0, 2: 0.0}
        """
        if self.nnz >= k:
            return self
        # Of the first k places, listed entries take at most nnz.
        free = torch.ones(k, dtype=torch.bool, device=self.indices.device)
        free[self.indices[self.indices < k].long()] = False
        places = free.nonzero().view(-1)[: k - self.nnz].to(self.indices.dtype)
        zeros = torch.zeros(len(places), device=self.values.device)
        return self.add(SparseVector(places, zeros, self.size))

    @classmethod
    def joined(
        cls, parts: Sequence["SparseVector"], blocks: Sequence[Block]
    ) -> "SparseVector":
        """The vector that consists of these blocks.

        >>> from thinwire.kernels import contiguous_blocks
        >>> parts = [SparseVector.of({0: 1.0}, size=2), SparseVector.of({1: 2.0}, 2)]
        >>> SparseVector.joined(parts, contiguous_blocks(4, 2)).to_dict()
        {0: 1.0, 3: 2.0}
        """
        joined = kernels.join([(p.indices, p.values) for p in parts], blocks)
        return cls(*joined, sum(part.size for part in parts))

    def to_dense(self) -> Tensor:
        """The whole vector, written out."""
        dense = torch.zeros(self.size, device=self.values.device)
        kernels.scatter_(dense, self.indices, self.values)
        return dense

    def to_dict(self) -> dict[int, float]:
        """The entries by index."""
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))


def sum_of(vectors: Sequence[SparseVector]) -> SparseVector:
    """The sum of at least one vector, added as a balanced tree in the given order.

    >>> sum_of([SparseVector.of({i: 1.0, 9: 1.0}, size=10) for i in range(3)]).to_dict()
    {0: 1.0, 1: 1.0, 2: 1.0, 9: 3.0}
    """
    merged = kernels.merge_all([(v.indices, v.values) for v in vectors])
    return SparseVector(*merged, vectors[0].size)


def keep_count(size: int, density: float) -> int:
    """How many of `size` elements a density keeps: at least one of a non-empty vector.

    >>> keep_count(1000, 0.01), keep_count(10, 0.01), keep_count(0, 0.01)
    (10, 1, 0)
    """
    return min(size, max(1, int(size * density)))
