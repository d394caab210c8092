"""Recursive doubling: 2^m ranks agree on the k largest of the sum of their lists.

In each of m rounds partners swap lists and both keep the k largest of the sum, lower
rank first, so that they compute the same bits. A list that 2^i ranks have in common is
sealed by all of them alike; what they drop they keep, each its share.
"""

from collections.abc import Sequence

from thinwire.channel import Sealed
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.sparse import SparseVector


def agree_by_doubling(
    ledger: Ledger,
    first: Sealed,
    k: int,
    *,
    peers: Sequence[int],
    distances: Sequence[int],
) -> SparseVector:
    """The list that all `peers` end with; `first` is the own one, `k` its entries.

    `peers` are ranks, this one among them; partners differ in one bit of their place.
    """
    me = peers.index(ledger.channel.rank)
    sealed, merged = first, first.vector
    for turn, distance in enumerate(distances):
        held = Holders(2**turn)
        if turn:
            sealed = ledger.seal(merged, holders=held, part=turn)
        partner = me ^ distance
        (theirs,) = ledger.channel.exchange(
            [sealed],
            dst=peers[partner],
            src=peers[partner],
            expect=[ledger.slot(k, part=turn)],
        )
        pair = [sealed.vector, theirs.vector]
        low, high = pair if me < partner else reversed(pair)
        merged = ledger.merge(low, high, k, Holders(2 ** (turn + 1)))
    return merged
