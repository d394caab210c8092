"""Ledger: removes what a block of an accumulator sends, returns what is not delivered.

Every collective on lists keeps the conservation law through a ledger. An entry that is
sent is subtracted as the peers will decode it. An entry that several ranks hold and
none delivers returns to the residuals once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel, ListSpec, Sealed
from thinwire.kernels import Block
from thinwire.sparse import SparseVector


@dataclass(frozen=True, slots=True)
class Holders:
    """The number of ranks that hold the same list, and this rank's number among them.

    What they drop or round off returns to their residuals. If their number is a power
    of two, each takes an equal share: the shares add up exactly. Otherwise one of them
    takes the whole entry, chosen by the remainder of its index.
    """

    count: int = 1
    number: int = 0


ALONE = Holders()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One block of an accumulator in one reduction; indices are relative to the block.

    A reduction adds peers' entries to the block (`receive`), then takes entries from
    it, then returns those that were not delivered.
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
        """The dtype that the codec rounds values to: see `Codec.rounding`."""
        return self.channel.rounding(self.block.length)

    def spec(self, k: int, phase: int = 0) -> ListSpec:
        """The description of a packet with `k` entries, sealed in `phase`."""
        return ListSpec(self.block.length, k, self._part(phase))

    def take(self, k: int) -> SparseVector:
        """The `k` largest entries, removed."""
        (taken,) = self.x.take([k], [self.number])
        return SparseVector(*taken, self.block.length)

    def select_and_seal(self, k: int, phase: int = 0) -> Sealed:
        """Seal the `k` largest entries, and subtract the values that peers decode."""
        (sealed,) = select_and_seal_each([self], [k], phase)
        return sealed

    def seal_selected(self, selected: SparseVector, phase: int) -> Sealed:
        """Seal entries that are still in the block; subtract what peers decode."""
        part = self._part(phase)
        sealed = self.channel.seal(selected, source=self._source, part=part)
        sent = sealed.vector
        held = selected.values if sent.indices is selected.indices else None
        self.x.subtract_(sent.indices, sent.values, self.number, held=held)
        return sealed

    def seal_prerounded(self, taken: SparseVector, phase: int) -> Sealed:
        """Seal entries from which the values that peers decode were already removed."""
        return self.channel.seal(taken, part=self._part(phase))

    def seal(
        self, taken: SparseVector, *, holders: Holders = ALONE, phase: int = 0
    ) -> Sealed:
        """Seal a list that was taken; what peers do not decode stays in `x`."""
        source = self._source if holders.count == 1 else None
        sealed = self.channel.seal(taken, source=source, part=self._part(phase))
        sent = sealed.vector
        if sent.indices is not taken.indices:
            self.return_to_residual(taken.subtract(sent), holders)
        elif self.rounding != torch.float32:
            self._return(taken, holders, sent.values)
        return sealed

    def return_to_residual(
        self, vector: SparseVector, holders: Holders = ALONE
    ) -> None:
        """Add this rank's share of entries that the holders did not deliver."""
        self._return(vector, holders)

    def receive(self, vector: SparseVector) -> None:
        """Add a peer's entries; call it before entries are taken from the block."""
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

    def _part(self, phase: int) -> int:
        # Lists of one reduction differ in their phase or in their block.
        return (phase << 32) + self.number

    def _source(self, indices: Tensor) -> Tensor:
        return self.x.gather(indices, self.number)


def select_and_seal_each(
    ledgers: Sequence[Ledger], counts: Sequence[int], phase: int = 0
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
        seal = ledger.seal_selected if apart or others else ledger.seal_prerounded
        sealed.append(seal(vector, phase))
    return sealed
