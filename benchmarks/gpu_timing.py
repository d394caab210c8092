"""Times of a CUDA device, and limits for them."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch

missed: list[str] = []


@dataclass
class Times:
    """Microseconds of one thing, many times."""

    every: list[float]

    @property
    def median(self) -> float:
        return median(self.every)

    def __str__(self) -> str:
        low, _, high = quantiles(self.every, n=4)
        return f"{self.median:8.1f} ({low:.0f}-{high:.0f})"


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """The same work as a graph; it must have run before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(
    run: Callable[[], object],
    repeats: int,
    prepare: Callable[[], object] = lambda: None,
    *,
    cold: bool = True,
) -> Times:
    spoiler = torch.empty(1 << 26, device="cuda") if cold else None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    every = []
    for _ in range(repeats):
        prepare()
        if spoiler is not None:
            spoiler.fill_(1.0)
        start.record()
        run()
        end.record()
        end.synchronize()
        every.append(1e3 * start.elapsed_time(end))
    return Times(every)


def in_a_row(run: Callable[[], object], times: int = 20) -> Times:
    """One of many in a row, in one graph: the cache warm, no launch in the way."""
    run()
    replay = captured(lambda: [run() for _ in range(times)])
    found = timed(replay, 9, cold=False)
    return Times([each / times for each in found.every])


def judge(name: str, value: float, limit: float, *, least: bool = False) -> str:
    good = value >= limit if least else value <= limit
    if not good:
        missed.append(f"{name}: {value:.3g} where {limit:.3g} is the aim")
    return f"{'ok' if good else 'MISSED'} (aim {limit:g})"


def floor_of(size: int, repeats: int) -> float:
    source, target = (torch.rand(size, device="cuda") for _ in range(2))
    # Where memory lies makes a difference, by chance: the better of two counts.
    copying = min(
        timed(lambda: target.copy_(source), repeats).median,
        timed(lambda: source.copy_(target), repeats).median,
    )
    return 1.5 * copying  # a copy moves 8 bytes per element, a step 12
