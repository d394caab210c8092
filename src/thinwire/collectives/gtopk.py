"""gTop-k: the largest of the sum of everyone's largest, found by merging in pairs.

Lists are merged along a tree or a butterfly and cut to k after every merge, so that a
message stays at k entries however many ranks there are: O(k log P) traffic. Shi et al.,
ICDCS 2019. The released code gives a dropped value back to its origin only if its index
is missing from the final list, and so loses what was dropped on one branch and arrived
on another; here whoever drops keeps.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import doubling
from thinwire.collectives.collective import Room, Selecting, State, packet_nbytes
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.cost import Cost, direct_all_gather
from thinwire.errors import ConfigError
from thinwire.sparse import SparseVector, keep_count, sum_of

Variant = Literal["butterfly", "tree", "naive"]


@dataclass(frozen=True, slots=True)
class GTopK(Selecting):
    """About the top k of the sum, any number of ranks.

    "butterfly": everyone merges in every round; ranks beyond the largest power of two
    fold into it first and are told at the end. "tree": merged towards rank 0, then
    broadcast. "naive": everything is gathered, then cut to k; for comparison.
    """

    variant: Variant = "butterfly"

    def __post_init__(self) -> None:
        # Named, because a dataclass with slots is not the class super() knows.
        Selecting.__post_init__(self)
        if self.variant not in get_args(Variant):
            raise ConfigError(
                f"variant is {self.variant!r}: choose 'butterfly', 'tree' or 'naive'"
            )

    def all_reduce_(
        self, x: Tensor, channel: Channel, state: State, out: Room
    ) -> SparseVector:
        ledger = Ledger.whole(x, channel, state)
        k = keep_count(x.numel(), self.density)
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
        if self.variant == "tree":
            depth = (ranks - 1).bit_length()
            return Cost(2 * depth, depth * packet, awaited=depth * packet)
        doublings = ranks.bit_length() - 1
        folds = int(ranks != 2**doublings)
        sent, heard = (doublings + folds) * packet, folds * packet
        return Cost(doublings + 2 * folds, sent, awaited=heard)


def _butterfly(ledger: Ledger, k: int) -> SparseVector:
    channel, rank = ledger.channel, ledger.channel.rank
    rounds = channel.size.bit_length() - 1
    core = 2**rounds
    final = ledger.slot(k, turn=rounds)
    if rank >= core:
        host = rank - core
        channel.expect([(host, [final])])
        channel.exchange([ledger.emit(k)], dst=host, src=None, expect=[ledger.slot(k)])
        (told,) = channel.exchange([], dst=None, src=host, expect=[final])
        return told.vector
    guest = rank + core if rank + core < channel.size else None
    partners = [rank ^ 2**turn for turn in range(rounds)]
    guests = [] if guest is None else [(guest, [ledger.slot(k)])]
    channel.expect([*guests, *doubling.arrivals(ledger, k, partners=partners)])
    if guest is None:
        first = ledger.emit(k)
    else:
        mine = ledger.take(k)
        (theirs,) = channel.exchange([], dst=None, src=guest, expect=[ledger.slot(k)])
        first = ledger.seal(ledger.merge(mine, theirs.vector, k))
    merged = doubling.agree(ledger, first, k, partners=partners)
    if core == channel.size:
        return merged
    # Guests get bytes, so their hosts, and hosts without a guest, adopt the same.
    sealed = ledger.seal(merged, holders=Holders(core), turn=rounds)
    if guest is not None:
        channel.exchange([sealed], dst=guest, src=None, expect=[final])
    return sealed.vector


def _tree(ledger: Ledger, k: int) -> SparseVector:
    channel, rank = ledger.channel, ledger.channel.rank
    depth = (channel.size - 1).bit_length()
    # The parent is as far away as the lowest bit of the rank says, children are nearer.
    height = depth if rank == 0 else (rank & -rank).bit_length() - 1
    parent = rank - 2**height
    children = [
        (level, rank + 2**level)
        for level in range(height)
        if rank + 2**level < channel.size
    ]
    final = ledger.slot(k, turn=depth)
    incoming = [(child, [ledger.slot(k, level)]) for level, child in children]
    channel.expect([*incoming, (parent, [final])] if rank else incoming)
    merged = ledger.take(k)
    for child, slots in incoming:
        (theirs,) = channel.exchange([], dst=None, src=child, expect=slots)
        merged = ledger.merge(merged, theirs.vector, k)
    sealed = ledger.seal(merged, turn=height)
    if rank != 0:
        channel.exchange(
            [sealed], dst=parent, src=None, expect=[ledger.slot(k, height)]
        )
        (sealed,) = channel.exchange([], dst=None, src=parent, expect=[final])
    for _, child in reversed(children):
        channel.exchange([sealed], dst=child, src=None, expect=[final])
    return sealed.vector


def _naive(ledger: Ledger, k: int) -> SparseVector:
    channel = ledger.channel
    gathered = channel.all_gather(ledger.emit(k), expect=ledger.slot(k))
    total = sum_of([each.vector for each in gathered])
    kept, dropped = total.split(k)
    ledger.keep(dropped, Holders(channel.size, channel.rank))
    return kept
