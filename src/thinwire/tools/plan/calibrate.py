"""Processor time of reductions on this machine, measured on simulated ranks.

The ranks run one after the other, in one process, so that each has a core of its own.
Time inside the group is the simulation's and is not counted. Where ranks
share a machine, other processes keep its other cores busy meanwhile (`neighbours.py`).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import mean
from time import thread_time

import torch
from torch import Tensor

from thinwire.groups import Counted, Group, Op, simulate
from thinwire.layout import Layout
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.processor import Sample, Speed, features

Point = tuple[int, int, float]
"""Elements, ranks and a density to measure at."""

Trial = tuple[Choice, int, int]
"""A choice, elements and ranks."""

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
WARM, STEPS, FASTEST = 2, 3, 2
SWEEPS = 2  # over all methods: a slow moment of the machine is a part of one
MOST_RANKS = max(ranks for _, ranks, _ in POINTS)
# Other ranks' and other steps' gradients are the same numbers, shifted by this many
# elements: fresh ones take longer to draw than to reduce.
_SHIFT = 4099
_LONGEST, _MOST_STEPS = 8_000_000, 11
_PERIOD = 1 << 16


class Metered(Counted):
    """Counts processor time of this thread inside of the group as its waiting."""

    def now(self) -> float:
        return thread_time()


def measure(
    choices: Mapping[str, Choice],
    points: Sequence[Point] = POINTS,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Speed]:
    """The speeds of methods with their codecs, by the names they are given.

    Their densities are chosen here. `tell` is called with what is measured.
    """

    def spent(name: str, sweep: int) -> list[list[float]]:
        tell(f"{name}, {sweep + 1} of {SWEEPS}")
        return [_spent(*trial) for trial in _trials(choices[name], points)]

    sweeps = [{name: spent(name, sweep) for name in choices} for sweep in range(SWEEPS)]
    return {
        name: Speed.of(
            [
                _sample(trial, found)
                for trial, *found in zip(
                    _trials(choice, points),
                    *(sweep[name] for sweep in sweeps),
                    strict=True,
                )
            ]
        )
        for name, choice in choices.items()
    }


def _trials(choice: Choice, points: Sequence[Point]) -> list[Trial]:
    measured = representative(choice)
    trials = [
        (measured.at_density(density), size, ranks) for size, ranks, density in points
    ]
    # Dense methods would be measured twice at the densities of one size.
    return list(dict.fromkeys(trials))


def representative(choice: Choice) -> Choice:
    """The choice that is measured for a choice: several teams are measured as two."""
    teams = dict(choice.options).get("teams", 1)
    several = choice.method == "spardl" and teams != 1
    return choice.with_options(teams=2) if several else choice


def keep_busy() -> Iterator[None]:
    """Reduce for ever, as a rank on a core of its own."""
    size, ranks, density = POINTS[0]
    choice = Choice.parse("topk", density)
    parent = os.getppid()
    while os.getppid() == parent:  # ends if the parent was killed
        _spent(choice, size, ranks)
        yield


def _spent(choice: Choice, size: int, ranks: int) -> list[float]:
    """Processor seconds of each rank."""
    return simulate(ranks, lambda group: _rank(choice, size, group))


def _sample(trial: Trial, sweeps: Sequence[Sequence[float]]) -> Sample:
    """The least time of the sweeps: other work on the machine only adds to it."""
    spent = [min(each) for each in zip(*sweeps, strict=True)]
    return Sample(features(*trial), mean(spent), max(spent))


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
    return mean(sorted(times[WARM:])[:FASTEST])


def reduction(choice: Choice, size: int, group: Group) -> Callable[[Tensor], object]:
    """The function that a rank calls with a gradient in every step."""
    if choice.method == "dense":  # as plain DDP does it

        def all_reduce(grad: Tensor) -> None:
            group.all_reduce_((grad, Op.SUM))
            grad.div_(group.size)

        return all_reduce
    reducer = choice.reducer
    state = reducer.init(Layout.flat(size))
    return lambda grad: reducer.reduce_([grad], group, state)


def gradient(size: int, rank: int, step: int) -> Tensor:
    """Laplace values; each run of 64 k elements has a scale of its own."""
    start = (rank + MOST_RANKS * (step % _MOST_STEPS)) * _SHIFT
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
