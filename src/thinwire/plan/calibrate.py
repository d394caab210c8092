"""How long this machine computes for a reduction: real ones, on simulated ranks.

The ranks run one after the other, in one process, so each finds a core of its own. What
they spend inside of the group is not counted: that is the simulation's. Where ranks
share a machine, other processes keep its other cores busy meanwhile (`neighbours.py`).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from statistics import mean
from time import thread_time

import torch
from torch import Tensor

from thinwire.groups import Counted, Group, Op, simulate
from thinwire.layout import Layout
from thinwire.plan.choice import Choice
from thinwire.plan.processor import Sample, Speed, features

Point = tuple[int, int, float]
"""Elements, ranks and a density to measure at."""

# Large vectors on few ranks for what an element and an entry cost, others on more for
# what a peer's entries do, small ones for what a list costs of any length.
POINTS: tuple[Point, ...] = (
    (4_000_000, 2, 0.01),
    (4_000_000, 2, 0.001),
    (2_000_000, 8, 0.01),
    (1_000_000, 4, 0.01),
    (100_000, 4, 0.03),
    (50_000, 16, 0.01),
    (20_000, 4, 0.01),
)
WARM, STEPS = 2, 4
MOST_RANKS = max(ranks for _, ranks, _ in POINTS)
# Other ranks' and other steps' gradients are the same numbers, moved on by so many:
# fresh ones take longer to draw than to reduce.
_SHIFT = 4099
_LONGEST, _MOST_STEPS = 8_000_000, 11
_PERIOD = 1 << 16


class Metered(Counted):
    """Counts processor time of this thread inside of the group as its waiting."""

    def now(self) -> float:
        return thread_time()


def measure(choice: Choice, points: Sequence[Point] = POINTS) -> Speed:
    """The speed of a method with its codec; its density is chosen here."""
    measured = representative(choice)
    trials = [
        (measured.at_density(density), size, ranks) for size, ranks, density in points
    ]
    # What keeps everything would be measured twice at the densities of one size.
    return Speed.of([_sample(*trial) for trial in dict.fromkeys(trials)])


def representative(choice: Choice) -> Choice:
    """What is measured for a choice: several teams are measured as two."""
    teams = dict(choice.options).get("teams", 1)
    several = choice.method == "spardl" and teams != 1
    return choice.with_options(teams=2) if several else choice


def keep_busy() -> Iterator[None]:
    """Reduce for ever, as a rank does that has a core to itself."""
    size, ranks, density = POINTS[0]
    choice = Choice.parse("topk", density)
    parent = os.getppid()
    while os.getppid() == parent:  # nobody is left busy by a parent that was killed
        _sample(choice, size, ranks)
        yield


def _sample(choice: Choice, size: int, ranks: int) -> Sample:
    spent = simulate(ranks, lambda group: _rank(choice, size, group))
    return Sample(
        features(choice, size, ranks),
        sum(spent) / ranks,
        max(spent),
    )


def _rank(choice: Choice, size: int, group: Group) -> float:
    """Processor seconds of one rank in a step, outside of the group."""
    grad = torch.empty(size)
    metered = Metered(group)
    reduce_ = reduction(choice, size, metered)
    times = []
    for step in range(WARM + STEPS):
        grad.copy_(gradient(size, group.rank, step))
        metered.reset()
        started = thread_time()
        reduce_(grad)
        times.append(thread_time() - started - metered.traffic.wait)
    # What else runs on the machine can only add to them.
    return mean(sorted(times[WARM:])[: STEPS // 2])


def reduction(choice: Choice, size: int, group: Group) -> Callable[[Tensor], object]:
    """What a rank calls with a gradient in every step."""
    if choice.method == "dense":  # as plain DDP does it

        def all_reduce(grad: Tensor) -> None:
            group.all_reduce_((grad, Op.SUM))
            grad.div_(group.size)

        return all_reduce
    reducer = choice.reducer
    state = reducer.init(Layout.flat(size))
    return lambda grad: reducer.reduce_([grad], group, state)


def gradient(size: int, rank: int, step: int) -> Tensor:
    """One of Laplace's, with a scale of its own for each run of 64 k elements."""
    start = (rank + MOST_RANKS * step) * _SHIFT
    return _drawn()[start : start + size]


@lru_cache(maxsize=1)
def _drawn() -> Tensor:
    size = _LONGEST + MOST_RANKS * _MOST_STEPS * _SHIFT
    generator = torch.Generator().manual_seed(0)
    values = torch.empty(size).exponential_(generator=generator)
    signs = torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8)
    values *= 2 * signs - 1
    scales = torch.randn(-(-size // _PERIOD), generator=generator).exp_()
    values *= scales.repeat_interleave(_PERIOD)[:size]
    return values
