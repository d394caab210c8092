"""Recursive doubling: 2^m ranks agree on the k largest of the sum of their lists.

In each of m rounds partners swap lists and both keep the k largest of the sum, lower
rank first, so that they compute the same bits. A list that 2^i ranks have in common is
sealed by all of them alike; what they drop they keep, each its share.
"""

from collections.abc import Sequence

from thinwire.channel import Bag, Sealed
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.sparse import SparseVector


def arrivals(
    ledger: Ledger, k: int, *, partners: Sequence[int], turn: int = 0
) -> list[Bag]:
    """What each round brings."""
    return [(partner, [ledger.slot(k, turn + i)]) for i, partner in enumerate(partners)]


def agree(
    ledger: Ledger, first: Sealed, k: int, *, partners: Sequence[int], turn: int = 0
) -> SparseVector:
    """The list that all end with; `first` is the own one, `k` its entries.

    `partners` are the ranks to swap with, round by round. `turn` is the one that
    `first` was sealed in; others follow.
    """
    sealed, merged = first, first.vector
    incoming = arrivals(ledger, k, partners=partners, turn=turn)
    for i, (partner, slots) in enumerate(incoming):
        if i:
            sealed = ledger.seal(merged, holders=Holders(2**i), turn=turn + i)
        (theirs,) = ledger.channel.exchange(
            [sealed], dst=partner, src=partner, expect=slots
        )
        pair = [sealed.vector, theirs.vector]
        low, high = pair if ledger.channel.rank < partner else reversed(pair)
        merged = ledger.merge(low, high, k, Holders(2 ** (i + 1)))
    return merged
