"""Recursive doubling: 2^m ranks agree on the k largest of the sum of their lists.

In each of m rounds partners swap lists and both keep the k largest of the sum, lower
rank first, so that they compute the same bits. 2^i ranks hold the same list after i
rounds. Each of them seals it, with the same bytes, and keeps its share of what they
drop.
"""

from collections.abc import Sequence

from thinwire.channel import Run, Sealed
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.schedules import Step
from thinwire.sparse import SparseVector


def agree(
    run: Run, ledger: Ledger, first: Sealed, *, k: int, steps: Sequence[Step]
) -> SparseVector:
    """Take the steps; return the common list of `k` entries.

    `first` is this rank's list, sealed in the phase of the first step.
    """
    sealed, merged = first, first.vector
    for i, step in enumerate(steps):
        if i:
            sealed = ledger.seal(merged, holders=Holders(2**i), phase=step.phase)
        (theirs,) = run.exchange([sealed])
        pair = [sealed.vector, theirs.vector]
        assert step.dst is not None
        low, high = pair if ledger.channel.rank < step.dst else reversed(pair)
        merged = ledger.merge(low, high, k, Holders(2 ** (i + 1)))
    return merged
