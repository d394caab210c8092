"""gTop-k: the largest of the sum of everyone's largest, found by merging in pairs.

Lists are merged along a tree or a butterfly and cut to k after every merge, so that a
message stays at k entries however many ranks there are: O(k log P) traffic. Shi et al.,
ICDCS 2019. The released code gives a dropped value back to its origin only if its index
is missing from the final list, and so loses what was dropped on one branch and arrived
on another; here the rank that drops a value keeps it.
"""

from dataclasses import dataclass
from typing import Literal

from thinwire import schedules
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import doubling
from thinwire.collectives.collective import (
    MakeBuffer,
    Selecting,
    check_choice,
    packet_nbytes,
)
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.collectives.memory import CollectiveMemory
from thinwire.cost import Cost, direct_all_gather
from thinwire.schedules import Step
from thinwire.sparse import SparseVector, keep_count, sum_of

Variant = Literal["butterfly", "tree", "naive"]


@dataclass(frozen=True, slots=True)
class GTopK(Selecting):
    """About the top k of the sum, any number of ranks.

    "butterfly": everyone merges in every round; ranks beyond the largest power of two
    fold into it first and receive the result. "tree": merged towards rank 0, then
    broadcast. "naive": everything is gathered, then cut to k; for comparison.
    """

    variant: Variant = "butterfly"

    def __post_init__(self) -> None:
        # Named, because a dataclass with slots is not the class super() knows.
        Selecting.__post_init__(self)
        check_choice("variant", self.variant, Variant)

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        ledger = Ledger.whole(x, channel)
        k = keep_count(x.size, self.density)
        if channel.size == 1:
            return ledger.take(k)
        reduce = {"butterfly": _butterfly, "tree": _tree, "naive": _naive}
        return reduce[self.variant](ledger, k)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        if ranks == 1:
            return Cost()
        packet = packet_nbytes(codec, size, keep_count(size, self.density))
        if self.variant == "naive":
            return direct_all_gather(packet, ranks)
        return schedules.cost(self.schedule(0, ranks), packet)  # no rank is busier

    def schedule(self, rank: int, ranks: int) -> list[Step]:
        """The steps of a rank, if it is not "naive"."""
        tree = self.variant == "tree"
        parts = (schedules.tree if tree else schedules.butterfly)(rank, ranks)
        return [step for part in parts for step in part]


def _butterfly(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    before, swaps, after = schedules.butterfly(channel.rank, channel.size)
    run = channel.start([*before, *swaps, *after], lambda _, turn: ledger.slot(k, turn))
    if before and swaps:  # the host of a guest
        mine = ledger.take(k)
        (theirs,) = run.exchange()
        first = ledger.seal(ledger.merge(mine, theirs.vector, k))
    else:
        first = ledger.select_and_seal(k)
    if not swaps:  # a guest
        run.exchange([first])
        (final,) = run.exchange()
        return final.vector
    merged = doubling.agree(run, ledger, first, k=k, steps=swaps)
    core = 2 ** len(swaps)
    if core == channel.size:
        return merged
    # Guests get bytes, so their hosts, and hosts without a guest, adopt the same.
    final = ledger.seal(merged, holders=Holders(core), turn=len(swaps))
    if after:
        run.exchange([final])
    return final.vector


def _tree(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    merges, rest = schedules.tree(channel.rank, channel.size)
    run = channel.start([*merges, *rest], lambda _, turn: ledger.slot(k, turn))
    merged = ledger.take(k)
    for _ in merges:
        (theirs,) = run.exchange()
        merged = ledger.merge(merged, theirs.vector, k)
    sealed = ledger.seal(merged, turn=rest[0].turn)
    for step in rest:
        if step.src is None:
            run.exchange([sealed])
        else:
            (sealed,) = run.exchange()
    return sealed.vector


def _naive(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    gathered = channel.all_gather(ledger.select_and_seal(k), expect=ledger.slot(k))
    total = sum_of([each.vector for each in gathered])
    kept, dropped = total.split(k)
    ledger.return_to_residual(dropped, Holders(channel.size, channel.rank))
    return kept
