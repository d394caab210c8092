"""Ledger: what leaves a block of an accumulator, and what returns to it.

Every collective on lists keeps the conservation law through a ledger. An entry that is
sent is subtracted as the peers will decode it. An entry that several ranks hold and
none delivers is returned to the residual once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel, Sealed, Slot
from thinwire.kernels import Block
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Holders:
    """How many ranks hold the same list, and this rank's number among them.

    What they drop or round off is divided among them if they are a power of two: the
    shares then add up exactly. Otherwise each entry is returned whole by one of them,
    chosen by the remainder of its index: thirds do not add up exactly in float32.
    """

    count: int = 1
    number: int = 0


ALONE = Holders()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One block of an accumulator in one reduction; indices count in the block.

    A reduction first adds peers' entries to the block (`receive`), then takes entries
    from it, then returns those that were not delivered.
    """

    x: Accumulator
    channel: Channel
    number: int
    block: Block

    @classmethod
    def whole(cls, x: Accumulator, channel: Channel) -> "Ledger":
        """The vector as one block."""
        (ledger,) = cls.each(x, channel, (Block.whole(x.size),))
        return ledger

    @classmethod
    def each(
        cls, x: Accumulator, channel: Channel, blocks: tuple[Block, ...]
    ) -> "list[Ledger]":
        """A ledger for each of the blocks that the vector is cut into."""
        x.set_blocks(blocks)
        return [cls(x, channel, *each) for each in enumerate(blocks)]

    @property
    def rounding(self) -> torch.dtype | None:
        """The dtype to which the codec rounds values; None if it does anything else."""
        return self.channel.rounding(self.block.length)

    def slot(self, k: int, turn: int = 0) -> Slot:
        """The description of a packet with `k` entries, sealed in `turn`."""
        return Slot(self.block.length, k, self._part(turn))

    def take(self, k: int) -> SparseVector:
        """The `k` largest entries, removed."""
        (taken,) = self.x.take([k], [self.number])
        return SparseVector(*taken, self.block.length)

    def select_and_seal(self, k: int, turn: int = 0) -> Sealed:
        """Seal the `k` largest entries, and subtract the values that peers decode."""
        (sealed,) = select_and_seal_each([self], [k], turn)
        return sealed

    def send_selected(self, selected: SparseVector, turn: int) -> Sealed:
        """Seal entries that the block still holds; subtract what peers decode."""
        part = self._part(turn)
        sealed = self.channel.seal(selected, source=self._source, part=part)
        sent = sealed.vector
        held = selected.values if sent.indices is selected.indices else None
        self.x.subtract_(sent.indices, sent.values, self.number, held=held)
        return sealed

    def seal_prerounded(self, taken: SparseVector, turn: int) -> Sealed:
        """Seal entries from which the values that peers decode were already removed."""
        return self.channel.seal(taken, part=self._part(turn))

    def seal(
        self, taken: SparseVector, *, holders: Holders = ALONE, turn: int = 0
    ) -> Sealed:
        """Seal a list that was taken; return what its packet loses to the residual."""
        source = self._source if holders.count == 1 else None
        sealed = self.channel.seal(taken, source=source, part=self._part(turn))
        sent = sealed.vector
        if sent.indices is not taken.indices:
            self.return_to_residual(taken.subtract(sent), holders)
        elif self.rounding != torch.float32:
            self._return(taken, holders, sent.values)
        return sealed

    def return_to_residual(
        self, vector: SparseVector, holders: Holders = ALONE
    ) -> None:
        """Add entries that the holders did not deliver: this rank's share of them."""
        self._return(vector, holders)

    def receive(self, vector: SparseVector) -> None:
        """Add a peer's entries before the block is taken from."""
        self.x.add_(vector.indices, vector.values, self.number)

    def merge(
        self,
        low: SparseVector,
        high: SparseVector,
        k: int,
        holders: Holders = ALONE,
    ) -> SparseVector:
        """The `k` largest entries of a sum; its holders return the others."""
        if max(low.nnz, high.nnz) < k:
            kept, dropped = low.add(high).split(k)
            self.return_to_residual(dropped, holders)
            return kept.filled(k)
        pair = (low.indices, low.values), (high.indices, high.values)
        most, rest = kernels.merge_split(*pair, k)
        self.return_to_residual(SparseVector(*rest, low.size), holders)
        return SparseVector(*most, low.size)

    def _return(
        self, vector: SparseVector, holders: Holders, sent: Tensor | None = None
    ) -> None:
        each = (holders.count, holders.number)
        self.x.return_(
            vector.indices, vector.values, self.number, sent=sent, holders=each
        )

    def _part(self, turn: int) -> int:
        # Lists of one reduction differ in their turn, or in their block.
        return (turn << 32) + self.number

    def _source(self, indices: Tensor) -> Tensor:
        return self.x.gather(indices, self.number)


def select_and_seal_each(
    ledgers: Sequence[Ledger], counts: Sequence[int], turn: int = 0
) -> list[Sealed]:
    """`select_and_seal` for several blocks of one accumulator, selected together."""
    x, numbers = ledgers[0].x, [ledger.number for ledger in ledgers]
    rounding, *others = {ledger.rounding for ledger in ledgers}
    if rounding is None or others:
        lists = x.select(counts, numbers)
    else:  # the decoded values are known before encoding: remove them at once
        lists = x.take(counts, numbers, rounding)
    sealed = []
    for ledger, each in zip(ledgers, lists, strict=True):
        vector, apart = SparseVector(*each, ledger.block.length), rounding is None
        seal = ledger.send_selected if apart or others else ledger.seal_prerounded
        sealed.append(seal(vector, turn))
    return sealed
