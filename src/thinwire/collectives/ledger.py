"""Ledger: what leaves a block of `x`, and what comes back to it.

The rules of the law that every collective on lists needs, in one place. What is sent is
subtracted as the peers will decode it; what several ranks hold alike is kept once.
"""

from collections.abc import Sequence
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


ALONE = Holders()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One block of `x` in one reduction; indices of its lists count in the block.

    A block is received into, then taken from, then given back what was not delivered,
    in this order: until it is taken from, some of it may be with the marker.
    """

    x: Tensor
    channel: Channel
    marker: Marker
    number: int = 0

    @classmethod
    def whole(cls, x: Tensor, channel: Channel, state: State) -> "Ledger":
        """The vector as one block."""
        return cls(x, channel, state.marker_of(x, (Block.whole(x.numel()),)))

    @property
    def block(self) -> Block:
        """Where the block lies in the vector."""
        return self.marker.blocks[self.number]

    @property
    def rounding(self) -> torch.dtype | None:
        """What becomes of values of the block on their way, if just that."""
        return self.channel.rounding(self.block.length)

    def slot(self, k: int, turn: int = 0) -> Slot:
        """What a receiver expects of `k` entries of this block, sealed in `turn`."""
        return Slot(self.block.length, k, self._part(turn))

    def take(self, k: int) -> SparseVector:
        """The `k` largest entries, removed."""
        (taken,) = kernels.take_each(
            self.x, [k], marker=self.marker, numbers=[self.number]
        )
        return SparseVector(*taken, self.block.length)

    def emit(self, k: int, turn: int = 0) -> Sealed:
        """The `k` largest entries, sealed, and removed as far as peers get them."""
        (sealed,) = emit_each([self], [k], turn)
        return sealed

    def dispatch(self, selected: SparseVector, turn: int) -> Sealed:
        """Seal entries that are still there; what peers get of them is removed."""
        part = self._part(turn)
        sealed = self.channel.seal(selected, source=self._source, part=part)
        sent, block = sealed.vector, self.block
        if sent.indices is selected.indices:
            held = (selected.values, sent.values)
            kernels.leave_at_(self.x, sent.indices, *held, block=block)
        else:
            kernels.subtract_at_(self.x, sent.indices, sent.values, block=block)
        return sealed

    def seal_rounded(self, taken: SparseVector, turn: int) -> Sealed:
        """Seal entries of which just that was removed which peers will get."""
        return self.channel.seal(taken, part=self._part(turn))

    def seal(
        self, taken: SparseVector, *, holders: Holders = ALONE, turn: int = 0
    ) -> Sealed:
        """Seal a list that was taken out; what its packet does not say comes back."""
        source = self._source if holders.count == 1 else None
        sealed = self.channel.seal(taken, source=source, part=self._part(turn))
        told = sealed.vector
        if told.indices is not taken.indices:
            self.keep(taken.subtract(told), holders)
        elif self.rounding != torch.float32:
            self._keep(taken, holders, told.values)
        return sealed

    def keep(self, vector: SparseVector, holders: Holders = ALONE) -> None:
        """Put entries back that this rank, or several alike, could not deliver."""
        self._keep(vector, holders)

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
        if max(low.nnz, high.nnz) < k:
            kept, dropped = low.add(high).split(k)
            self.keep(dropped, holders)
            return kept.filled(k)
        pair = (low.indices, low.values), (high.indices, high.values)
        most, rest = kernels.merge_split(*pair, k)
        self.keep(SparseVector(*rest, low.size), holders)
        return SparseVector(*most, low.size)

    def _keep(
        self, vector: SparseVector, holders: Holders, told: Tensor | None = None
    ) -> None:
        kernels.keep_at_(
            self.x,
            vector.indices,
            vector.values,
            told=told,
            holders=(holders.count, holders.number),
            block=self.block,
        )

    def _part(self, turn: int) -> int:
        # Lists of one reduction differ in their turn, or in their block.
        return (turn << 32) + self.number

    def _source(self, indices: Tensor) -> Tensor:
        return kernels.gather(self.x, indices, block=self.block)


def emit_each(
    ledgers: Sequence[Ledger], counts: Sequence[int], turn: int = 0
) -> list[Sealed]:
    """The largest entries of several blocks, selected at once, sealed one by one."""
    x, marker = ledgers[0].x, ledgers[0].marker
    numbers = [ledger.number for ledger in ledgers]
    rounding, *others = {ledger.rounding for ledger in ledgers}
    if rounding is None or others:
        lists = kernels.select_each(x, counts, marker=marker, numbers=numbers)
    else:
        # It is known what peers will be told: that leaves as it is selected.
        lists = kernels.take_each(
            x, counts, marker=marker, numbers=numbers, rounding=rounding
        )
    sealed = []
    for ledger, each in zip(ledgers, lists, strict=True):
        vector = SparseVector(*each, ledger.block.length)
        apart = rounding is None or others
        sealed.append((ledger.dispatch if apart else ledger.seal_rounded)(vector, turn))
    return sealed
