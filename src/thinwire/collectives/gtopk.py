"""gTop-k: the k largest of the sum of all top-k lists, merged in pairs.

Lists are merged along a tree or a butterfly and cut to k after every merge, so that a
message stays at k entries however many ranks there are: O(k log P) traffic. Shi et al.,
ICDCS 2019. The released code returns a dropped value to its origin only if its index is
missing from the final list. It loses a value that one branch drops if another branch
delivers the same index. Here the rank that drops a value keeps it.
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

    "butterfly": all ranks merge in every round; ranks beyond the largest power of two
    send their lists to partners first and receive the result. "tree": merged towards
    rank 0, then broadcast. "naive": everything is gathered, then cut to k; for
    comparison.
    """

    variant: Variant = "butterfly"

    def __post_init__(self) -> None:
        # Not super(): it fails in dataclasses with slots.
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
    run = channel.start(
        [*before, *swaps, *after], lambda _, phase: ledger.spec(k, phase)
    )
    if before and swaps:  # the partner of an extra rank
        mine = ledger.take(k)
        (theirs,) = run.exchange()
        first = ledger.seal(ledger.merge(mine, theirs.vector, k))
    else:
        first = ledger.select_and_seal(k)
    if not swaps:  # an extra rank
        run.exchange([first])
        (final,) = run.exchange()
        return final.vector
    merged = doubling.agree(run, ledger, first, k=k, steps=swaps)
    core = 2 ** len(swaps)
    if core == channel.size:
        return merged
    # Extra ranks decode bytes, so all other ranks adopt what these bytes decode to.
    final = ledger.seal(merged, holders=Holders(core), phase=len(swaps))
    if after:
        run.exchange([final])
    return final.vector


def _tree(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    merges, rest = schedules.tree(channel.rank, channel.size)
    run = channel.start([*merges, *rest], lambda _, phase: ledger.spec(k, phase))
    merged = ledger.take(k)
    for _ in merges:
        (theirs,) = run.exchange()
        merged = ledger.merge(merged, theirs.vector, k)
    sealed = ledger.seal(merged, phase=rest[0].phase)
    for step in rest:
        if step.src is None:
            run.exchange([sealed])
        else:
            (sealed,) = run.exchange()
    return sealed.vector


def _naive(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    gathered = channel.all_gather(ledger.select_and_seal(k), expect=ledger.spec(k))
    total = sum_of([each.vector for each in gathered])
    kept, dropped = total.split(k)
    ledger.return_to_residual(dropped, Holders(channel.size, channel.rank))
    return kept
