"""How long rounds take on a group: short and long ones, while all ranks take part.

A latency and a bandwidth do not tell: where ranks share cores, or a link is shaped, a
message of a few packets takes longer than both say, and one to all peers at once longer
still. Each call follows a barrier, as a rank's messages follow its computing: who waits
sleeps, and has to be woken. The slowest rank counts.
"""

from collections.abc import Callable
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
    """Measure, on all ranks at once; each gets the same."""
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
    found = [(n, _seconds(group, make(group, n), _REPEATS)) for n in _SIZES]
    # Long enough for the bandwidth: as the longest so far suggests.
    nbytes, took = found[-1]
    wanted = round(nbytes * max(4.0, _LONG_SECONDS / took))
    longer = max(2 * nbytes, min(wanted, _MOST_NBYTES // group.size))
    found.append((longer, _seconds(group, make(group, longer), _LONG_REPEATS)))
    highest, curve = 0.0, []
    for nbytes, took in found:  # none is faster than a shorter one, but for noise
        highest = max(highest, took)
        curve.append((nbytes, highest / rounds))
    return tuple(curve)


def _seconds(group: Group, call: Call, repeats: int) -> float:
    call()
    return median(slowest(group, call) for _ in range(repeats))


def _exchange(group: Group, nbytes: int) -> Call:
    body = torch.zeros(nbytes, dtype=torch.uint8)
    following, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return lambda: group.exchange(body, dst=following, src=before, nbytes=nbytes)


def _direct(group: Group, nbytes: int) -> Call:
    body = torch.zeros(nbytes, dtype=torch.uint8)
    return lambda: group.all_gather(body, nbytes=[nbytes] * group.size)


def _all_reduce(group: Group, nbytes: int) -> Call:
    # In a round of a ring, a rank sends one part of as many as there are ranks.
    buffer = torch.zeros(-(-nbytes * group.size // 4))
    return lambda: group.all_reduce_((buffer, Op.SUM))
