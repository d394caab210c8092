"""Schedules: which lists a rank sends and receives, step by step.

A schedule is a list of steps, as one rank sees them. A channel runs it, a cost card
counts it, and the planner plays it against a link.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from thinwire.cost import Cost


class Step(NamedTuple):
    """One message to `dst` and one from `src`, at the same time; None: no message.

    `sends` and `receives` are the numbers of the lists in the two messages, in order.
    Lists of the same number that are sealed at different times differ in `turn`.
    """

    dst: int | None
    src: int | None
    sends: Sequence[int]
    receives: Sequence[int]
    turn: int = 0


def _send(dst: int, turn: int) -> Step:
    return Step(dst, None, (0,), (), turn)


def _receive(src: int, turn: int) -> Step:
    return Step(None, src, (), (0,), turn)


def distances(ranks: int) -> list[int]:
    """The powers of two below a number of ranks.

    >>> distances(1), distances(2), distances(5), distances(8)
    ([], [1], [1, 2, 4], [1, 2, 4])
    """
    return [1 << i for i in range((ranks - 1).bit_length())]


def tree(rank: int, ranks: int) -> tuple[list[Step], list[Step]]:
    """A binomial tree: what a rank receives from its children, and everything after.

    A rank then sends to its parent, receives the result, and sends that to its
    children, the farthest first. On the way up the turn is the height of the sender,
    on the way down the depth of the tree.

    >>> [(step.dst, step.src) for part in tree(2, 4) for step in part]
    [(None, 3), (0, None), (None, 0), (3, None)]
    """
    depth = (ranks - 1).bit_length()
    # The parent is as far away as the lowest bit of the rank says, children are nearer.
    height = depth if rank == 0 else (rank & -rank).bit_length() - 1
    levels = [level for level in range(height) if rank + 2**level < ranks]
    merges = [_receive(rank + 2**level, level) for level in levels]
    rest = [_send(rank + 2**level, depth) for level in reversed(levels)]
    if rank != 0:
        parent = rank - 2**height
        rest = [_send(parent, height), _receive(parent, depth), *rest]
    return merges, rest


def doubling(
    me: int, peers: Sequence[int], *, turn: int = 0, farthest_first: bool = False
) -> list[Step]:
    """Recursive doubling among a power of two of peers; `me` is a position in them.

    >>> [step.dst for step in doubling(1, range(8))]
    [0, 3, 5]
    """
    steps = []
    hops = distances(len(peers))
    for i, distance in enumerate(reversed(hops) if farthest_first else hops):
        partner = peers[me ^ distance]
        steps.append(Step(partner, partner, (0,), (0,), turn + i))
    return steps


def butterfly(rank: int, ranks: int) -> tuple[list[Step], list[Step], list[Step]]:
    """Recursive doubling of any number of ranks: before, among, after.

    Ranks beyond the largest power of two are guests: each sends its list to a host
    before the others swap theirs, and receives the result after.

    >>> [[(step.dst, step.src) for step in part] for part in butterfly(0, 3)]
    [[(None, 2)], [(1, 1)], [(2, None)]]
    >>> [[(step.dst, step.src) for step in part] for part in butterfly(2, 3)]
    [[(0, None)], [], [(None, 0)]]
    """
    rounds = ranks.bit_length() - 1
    core = 2**rounds
    if rank >= core:
        host = rank - core
        return [_send(host, 0)], [], [_receive(host, rounds)]
    swaps = doubling(rank, range(core))
    guest = rank + core
    if guest >= ranks:
        return [], swaps, []
    return [_receive(guest, 0)], swaps, [_send(guest, rounds)]


def halving(me: int, peers: Sequence[int]) -> list[Step]:
    """A reduce-scatter: list r of every peer ends, merged, at the peer at position r.

    The list at offset o of position r is list (r + o) mod P. A message that goes
    `distance` on lands at the offsets from 0 of its receiver.

    >>> [(step.dst, step.sends) for step in halving(0, range(7))]
    [(4, [4, 5, 6]), (2, [2, 3]), (1, [1])]
    """
    count, steps = len(peers), []
    for turn, distance in enumerate(reversed(distances(count))):
        carried = min(2 * distance, count) - distance
        steps.append(
            Step(
                peers[(me + distance) % count],
                peers[(me - distance) % count],
                [(me + distance + i) % count for i in range(carried)],
                [(me + i) % count for i in range(carried)],
                turn,
            )
        )
    return steps


def bruck(me: int, peers: Sequence[int], *, turn: int = 0) -> list[Step]:
    """Bruck's all-gather: list r is the one of the peer at position r.

    The messages of a reduce-scatter, backwards: ceil(log2 P), for any number of peers,
    and no list is sent to a peer twice.

    >>> [(step.src, step.receives) for step in bruck(0, range(6))]
    [(1, [1]), (2, [2, 3]), (4, [4, 5])]
    """
    return [
        Step(step.src, step.dst, step.receives, step.sends, turn)
        for step in reversed(halving(me, peers))
    ]


def cost(steps: Iterable[Step], nbytes: int) -> Cost:
    """What the steps of one rank cost, where every list has `nbytes`.

    >>> cost(doubling(0, range(4)), 100)
    Cost(rounds=2, nbytes=200)
    """
    total = Cost()
    for step in steps:
        awaited = len(step.receives) if step.dst is None else 0
        total += Cost(1, len(step.sends) * nbytes, awaited * nbytes)
    return total
