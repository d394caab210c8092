"""Recursive doubling: 2^m ranks agree on the k largest of the sum of their lists.

In each of m rounds partners swap lists and both keep the k largest of the sum, lower
rank first, so that they compute the same bits. A list that 2^i ranks have in common is
sealed by each of them, with the same bytes; what they drop they keep, each its share.
"""

from collections.abc import Sequence

from thinwire.channel import Run, Sealed
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.schedules import Step
from thinwire.sparse import SparseVector


def agree(
    run: Run, ledger: Ledger, first: Sealed, *, k: int, steps: Sequence[Step]
) -> SparseVector:
    """Take the steps; returns the list of `k` entries that all end with.

    `first` is the own list, sealed in the turn of the first step.
    """
    sealed, merged = first, first.vector
    for i, step in enumerate(steps):
        if i:
            sealed = ledger.seal(merged, holders=Holders(2**i), turn=step.turn)
        (theirs,) = run.exchange([sealed])
        pair = [sealed.vector, theirs.vector]
        assert step.dst is not None
        low, high = pair if ledger.channel.rank < step.dst else reversed(pair)
        merged = ledger.merge(low, high, k, Holders(2 ** (i + 1)))
    return merged
