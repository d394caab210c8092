"""The order of the examples: another in every epoch, shared out among the ranks."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from thinwire.errors import ConfigError

Drawn = TypeVar("Drawn")


def generator_of(seed: int, epoch: int) -> torch.Generator:
    """A generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(((seed + 1) << 20) + epoch)


class PerEpoch(Generic[Drawn]):
    """A function's result for the last epoch, and other numbers, it was called with."""

    def __init__(self, draw: Callable[..., Drawn]) -> None:
        self._draw = draw
        self._kept: tuple[tuple[int, ...], Drawn] | None = None
        self._lock = threading.Lock()  # virtual workers may be threads

    def __call__(self, seed: int, epoch: int, *more: int) -> Drawn:
        place = (seed, epoch, *more)
        with self._lock:
            if self._kept is None or self._kept[0] != place:
                self._kept = place, self._draw(generator_of(seed, epoch), *more)
            return self._kept[1]


def steps_of(examples: int, batch: int, ranks: int) -> int:
    """The steps of an epoch in which every rank gets full batches.

    >>> steps_of(100, 8, 4)
    3
    """
    steps = examples // (batch * ranks)
    if steps < 1:
        raise ConfigError(
            f"{examples} examples do not fill one batch of {batch} on each of {ranks} "
            "workers: use fewer workers or smaller batches"
        )
    return steps


def share(rank: int, ranks: int, step: int, batch: int) -> slice:
    """The places of a rank's batch in the order of an epoch.

    >>> share(1, 2, 3, 10)
    slice(70, 80, None)
    """
    start = (step * ranks + rank) * batch
    return slice(start, start + batch)
