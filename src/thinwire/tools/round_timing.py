"""How long rounds take on a group: short and long ones, while all ranks take part.

A latency and a bandwidth do not predict it: where ranks share cores, or a link is
shaped, a message of a few packets takes longer than both predict, and one to all peers
at once longer still. Each call follows a barrier, as a rank's messages follow its
computing: a rank that waits sleeps, and has to be woken. The slowest rank counts.
"""

from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from time import perf_counter

import torch

from thinwire.cost import Curve, Rounds
from thinwire.groups.group import Group, Op

_SIZES = (8, 4096, 32768, 262144)  # bytes that a rank sends in a round
_REPEATS, _LONG_REPEATS = 41, 3
_LONG_SECONDS = 0.3
_MOST_NBYTES = 1 << 26  # of all messages of a rank in a call

Call = Callable[[], object]


def measure(group: Group) -> Rounds:
    """Measure, on all ranks at once; all get the same result."""
    return Rounds(
        _curve(group, _exchange, rounds=1),
        _curve(group, _direct, rounds=group.size - 1),
        _curve(group, _all_reduce, rounds=2 * (group.size - 1)),
    )


def slowest(group: Group, call: Call) -> float:
    """Seconds of a call on the slowest rank; all start together."""
    group.all_reduce_((torch.zeros(1), Op.MAX))
    start = perf_counter()
    call()
    took = torch.tensor([perf_counter() - start], dtype=torch.float64)
    group.all_reduce_((took, Op.MAX))
    return took.item()


def _curve(group: Group, make: Callable[[Group, int], Call], rounds: int) -> Curve:
    """Seconds of one of the rounds that a call has."""
    found = _seconds(group, [make(group, n) for n in _SIZES], _REPEATS)
    # Long enough for the bandwidth: as the longest so far suggests.
    nbytes = _SIZES[-1]
    wanted = round(nbytes * max(4.0, _LONG_SECONDS / found[-1]))
    longer = max(2 * nbytes, min(wanted, _MOST_NBYTES // group.size))
    found += _seconds(group, [make(group, longer)], _LONG_REPEATS)
    least, curve = inf, []
    for nbytes, took in zip((longer, *_SIZES[::-1]), found[::-1], strict=True):
        least = min(least, took)  # a shorter one is not slower, but for noise
        curve.append((nbytes, least / rounds))
    return tuple(reversed(curve))


def _seconds(group: Group, calls: Sequence[Call], repeats: int) -> list[float]:
    """The median of each call, in turns: a slow moment slows all of them."""
    for call in calls:
        call()
    turns = [[slowest(group, call) for call in calls] for _ in range(repeats)]
    return [median(times) for times in zip(*turns, strict=True)]


def _exchange(group: Group, nbytes: int) -> Call:
    body = torch.zeros(nbytes, dtype=torch.uint8)
    following, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return lambda: group.exchange(body, dst=following, src=before, nbytes=nbytes)


def _direct(group: Group, nbytes: int) -> Call:
    body = torch.zeros(nbytes, dtype=torch.uint8)
    return lambda: group.all_gather(body, nbytes=[nbytes] * group.size)


def _all_reduce(group: Group, nbytes: int) -> Call:
    # In a round of a ring, a rank sends a P-th of the buffer.
    buffer = torch.zeros(-(-nbytes * group.size // 4))
    return lambda: group.all_reduce_((buffer, Op.SUM))
