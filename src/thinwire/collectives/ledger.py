"""Ledger: what leaves a block of `x`, and what comes back to it.

The rules of the law that every collective on lists needs, in one place. What is sent is
subtracted as the peers will decode it; what several ranks hold alike is kept once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel, Sealed, Slot
from thinwire.collectives.collective import State
from thinwire.kernels import Block, Marker
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Holders:
    """How many ranks hold the same list, and which of them this rank is.

    What they drop or round off is divided among them if they are a power of two, which
    adds up again exactly. Else each keeps, whole, the entries whose index is its
    number: thirds and fifths do not add up in float32.
    """

    count: int = 1
    number: int = 0

    def share(self, vector: SparseVector) -> SparseVector:
        """This holder's part.

        >>> thirds = [Holders(3, number) for number in range(3)]
        >>> vector = SparseVector.of({0: 8.0, 3: 1.0, 5: -2.0}, size=6)
        >>> [holder.share(vector).to_dict() for holder in thirds]
        [{0: 8.0, 3: 1.0}, {}, {5: -2.0}]
        >>> Holders(4, 1).share(vector).to_dict()
        {0: 2.0, 3: 0.25, 5: -0.5}
        """
        if self.count == 1:
            return vector
        if self.count & (self.count - 1) == 0:
            return SparseVector(vector.indices, vector.values / self.count, vector.size)
        mine = vector.indices % self.count == self.number
        return SparseVector(vector.indices[mine], vector.values[mine], vector.size)


ALONE = Holders()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One block of `x` in one reduction; indices of its lists count in the block."""

    x: Tensor
    channel: Channel
    marker: Marker
    number: int = 0

    @classmethod
    def whole(cls, x: Tensor, channel: Channel, state: State) -> "Ledger":
        """The vector as one block."""
        return cls(x, channel, state.marker_of((Block.whole(x.numel()),)))

    @property
    def block(self) -> Block:
        """Where the block lies in the vector."""
        return self.marker.blocks[self.number]

    def slot(self, k: int, turn: int = 0) -> Slot:
        """What a receiver expects of `k` entries of this block, sealed in `turn`."""
        return Slot(self.block.length, k, self._part(turn))

    def take(self, k: int) -> SparseVector:
        """The `k` largest entries, removed."""
        taken = self._select(k)
        kernels.subtract_at_(self.x, taken.indices, taken.values, block=self.block)
        return taken

    def emit(self, k: int, turn: int = 0) -> Sealed:
        """The `k` largest entries, sealed, and removed as far as peers get them."""
        sealed = self.channel.seal(
            self._select(k), source=self._source, part=self._part(turn)
        )
        sent = sealed.vector
        kernels.subtract_at_(self.x, sent.indices, sent.values, block=self.block)
        return sealed

    def seal(
        self, taken: SparseVector, *, holders: Holders = ALONE, turn: int = 0
    ) -> Sealed:
        """Seal a list that was taken out; what its packet does not say comes back."""
        source = self._source if holders.count == 1 else None
        sealed = self.channel.seal(taken, source=source, part=self._part(turn))
        self.keep(_difference(taken, sealed.vector), holders)
        return sealed

    def keep(self, vector: SparseVector, holders: Holders = ALONE) -> None:
        """Put entries back that this rank, or several alike, could not deliver."""
        mine = holders.share(vector)
        kernels.add_at_(self.x, mine.indices, mine.values, block=self.block)

    def receive(self, vector: SparseVector) -> None:
        """Add a peer's entries before the block is selected from."""
        kernels.add_at_(
            self.x,
            vector.indices,
            vector.values,
            marker=self.marker,
            number=self.number,
        )

    def merge(
        self,
        low: SparseVector,
        high: SparseVector,
        k: int,
        holders: Holders = ALONE,
    ) -> SparseVector:
        """The `k` largest entries of a sum; the holders of the sum keep the others."""
        kept, dropped = low.add(high).split(k)
        self.keep(dropped, holders)
        return kept.filled(k)

    def _select(self, k: int) -> SparseVector:
        selected = kernels.select(self.x, k, marker=self.marker, number=self.number)
        return SparseVector(*selected, self.block.length)

    def _part(self, turn: int) -> int:
        # Lists of one reduction differ in their turn, or in their block.
        return (turn << 32) + self.number

    def _source(self, indices: Tensor) -> Tensor:
        return kernels.gather(self.x, indices, block=self.block)


def _difference(taken: SparseVector, told: SparseVector) -> SparseVector:
    """What of a list its packet does not say."""
    if not torch.equal(taken.indices, told.indices):
        return taken.subtract(told)
    # Nothing rounded off is nothing to write to memory that has long been cold.
    off = taken.values - told.values
    some = off != 0
    return SparseVector(taken.indices[some], off[some], taken.size)
