"""Spikes: where the training loss rose and for how long it stayed up.

The running mean of the last ten steps is compared with the lowest one before it. A
spike is where it lies more than a tenth above that; it lasts until it does not. Losses
that are not numbers count as infinite.

The mean of ten steps of eight workers scatters by a few percent, so a tenth is no
chance; and a run that was thrown back by less has recovered before its end.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WINDOW = 10
EXCESS = 0.1
PATIENCE = 50  # steps that a recovery may take


@dataclass(frozen=True, slots=True)
class Spike:
    """The step, from 1, at whose end the running mean was first too high; how long."""

    step: int
    length: int
    height: float  # the worst running mean over the lowest before the spike

    @property
    def recovered(self) -> bool:
        """Whether the loss came down again within 50 steps, or the run ended."""
        return self.length <= PATIENCE


def spikes(losses: Sequence[float]) -> list[Spike]:
    """Every spike of a run, in order, from the loss of every step.

    >>> spikes([2.0] * 30 + [9.0] + [2.0] * 30)
    [Spike(step=31, length=10, height=1.35)]
    >>> spikes([2.0 - 0.01 * step for step in range(100)])
    []
    """
    found: list[Spike] = []
    lowest, began, worst = math.inf, None, 0.0
    last = WINDOW
    for step, mean in _running(losses):
        last = step
        if mean > (1.0 + EXCESS) * lowest:
            began = step if began is None else began
            worst = max(worst, mean)
            continue
        if began is not None:
            found.append(Spike(began, step - began, worst / lowest))
        lowest, began, worst = min(lowest, mean), None, 0.0
    if began is not None:
        found.append(Spike(began, last + 1 - began, worst / lowest))
    return found


def unrecovered(losses: Sequence[float]) -> Spike | None:
    """The first spike from which a run does not recover within 50 steps, if any."""
    return next((spike for spike in spikes(losses) if not spike.recovered), None)


def _running(losses: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Each step from the tenth on, counted from 1, and the mean of ten steps."""
    known = [loss if math.isfinite(loss) else math.inf for loss in losses]
    for end in range(WINDOW, len(known) + 1):
        yield end, sum(known[end - WINDOW : end]) / WINDOW
