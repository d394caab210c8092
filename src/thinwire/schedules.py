"""Schedules: which lists a rank sends and receives, step by step.

A schedule is the list of steps of one rank. A channel runs it; the cost model and the
planner count its messages.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from thinwire.cost import Cost


class Step(NamedTuple):
    """One message to `dst` and one from `src`, at the same time; None: no message.

    `sends` and `receives` are the numbers of the lists in the two messages, in order.
    A list of the same number that is sealed again has another `phase`.
    """

    dst: int | None
    src: int | None
    sends: Sequence[int]
    receives: Sequence[int]
    phase: int = 0


def _send(dst: int, phase: int) -> Step:
    return Step(dst, None, (0,), (), phase)


def _receive(src: int, phase: int) -> Step:
    return Step(None, src, (), (0,), phase)


def distances(ranks: int) -> list[int]:
    """The powers of two below a number of ranks.

    >>> distances(1), distances(2), distances(5), distances(8)
    ([], [1], [1, 2, 4], [1, 2, 4])
    """
    return [1 << i for i in range((ranks - 1).bit_length())]


def tree(rank: int, ranks: int) -> tuple[list[Step], list[Step]]:
    """A binomial tree: what a rank receives from its children, and everything after.

    After the first part a rank sends to its parent, receives the result, and sends it
    to its children, the farthest first. On the way up the phase is the height of the
    sender, on the way down the depth of the tree.

    >>> [(step.dst, step.src) for part in tree(2, 4) for step in part]
    [(None, 3), (0, None), (None, 0), (3, None)]
    """
    depth = (ranks - 1).bit_length()
    # The lowest set bit of a rank is the distance to its parent; children are nearer.
    height = depth if rank == 0 else (rank & -rank).bit_length() - 1
    levels = [level for level in range(height) if rank + 2**level < ranks]
    merges = [_receive(rank + 2**level, level) for level in levels]
    rest = [_send(rank + 2**level, depth) for level in reversed(levels)]
    if rank != 0:
        parent = rank - 2**height
        rest = [_send(parent, height), _receive(parent, depth), *rest]
    return merges, rest


def doubling(
    me: int, peers: Sequence[int], *, phase: int = 0, farthest_first: bool = False
) -> list[Step]:
    """Recursive doubling among a power of two of peers; `me` is a position in them.

    >>> [step.dst for step in doubling(1, range(8))]
    [0, 3, 5]
    """
    steps = []
    hops = distances(len(peers))
    for i, distance in enumerate(reversed(hops) if farthest_first else hops):
        partner = peers[me ^ distance]
        steps.append(Step(partner, partner, (0,), (0,), phase + i))
    return steps


def butterfly(rank: int, ranks: int) -> tuple[list[Step], list[Step], list[Step]]:
    """Recursive doubling of any number of ranks: before, among, after.

    Each rank beyond the largest power of two, an extra rank, sends its list to a
    partner before the others swap theirs, and receives the result after.

    >>> [[(step.dst, step.src) for step in part] for part in butterfly(0, 3)]
    [[(None, 2)], [(1, 1)], [(2, None)]]
    >>> [[(step.dst, step.src) for step in part] for part in butterfly(2, 3)]
    [[(0, None)], [], [(None, 0)]]
    """
    rounds = ranks.bit_length() - 1
    core = 2**rounds
    if rank >= core:
        partner = rank - core
        return [_send(partner, 0)], [], [_receive(partner, rounds)]
    swaps = doubling(rank, range(core))
    extra = rank + core
    if extra >= ranks:
        return [], swaps, []
    return [_receive(extra, 0)], swaps, [_send(extra, rounds)]


def halving(me: int, peers: Sequence[int]) -> list[Step]:
    """A reduce-scatter: list r of every peer ends, merged, at the peer at position r.

    Offset o at position r is list (r + o) mod P. A message to the peer `distance`
    further carries the lists at the receiver's offsets from 0 on.

    >>> [(step.dst, step.sends) for step in halving(0, range(7))]
    [(4, [4, 5, 6]), (2, [2, 3]), (1, [1])]
    """
    count, steps = len(peers), []
    for phase, distance in enumerate(reversed(distances(count))):
        carried = min(2 * distance, count) - distance
        steps.append(
            Step(
                peers[(me + distance) % count],
                peers[(me - distance) % count],
                [(me + distance + i) % count for i in range(carried)],
                [(me + i) % count for i in range(carried)],
                phase,
            )
        )
    return steps


def direct(me: int, peers: Sequence[int]) -> list[Step]:
    """A reduce-scatter in which every list goes straight to its owner.

    All steps are of one phase: no list that is sent depends on one that is received.

    >>> [(step.dst, step.src, step.sends) for step in direct(0, range(4))]
    [(1, 3, [1]), (2, 2, [2]), (3, 1, [3])]
    """
    count = len(peers)
    return [
        Step(
            peers[(me + distance) % count],
            peers[(me - distance) % count],
            [(me + distance) % count],
            [me],
        )
        for distance in range(1, count)
    ]


def bruck(me: int, peers: Sequence[int], *, phase: int = 0) -> list[Step]:
    """Bruck's all-gather: list r is the one of the peer at position r.

    The messages of a reduce-scatter, backwards: ceil(log2 P), for any number of peers,
    and no list is sent to a peer twice.

    >>> [(step.src, step.receives) for step in bruck(0, range(6))]
    [(1, [1]), (2, [2, 3]), (4, [4, 5])]
    """
    return [
        Step(step.src, step.dst, step.receives, step.sends, phase)
        for step in reversed(halving(me, peers))
    ]


def cost(steps: Iterable[Step], nbytes: int) -> Cost:
    """The cost of one rank's steps, if every list has `nbytes`.

    >>> cost(doubling(0, range(4)), 100)
    Cost(rounds=2, nbytes=200)
    """
    total = Cost()
    for step in steps:
        awaited = len(step.receives) if step.dst is None else 0
        total += Cost(1, len(step.sends) * nbytes, awaited * nbytes)
    return total
