"""The demo: every method trains the same model for the same time, in turns.

What else runs on the machine then slows all of them down alike.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError
from thinwire.tools.demo import methods
from thinwire.tools.demo.loop import Limits, ProgressEvent, Recipe, Run, Training
from thinwire.tools.demo.text import Corpus, standard_library

# The first of several takes less than its time, so that slower ones can keep up.
_FIRST_SHARE = 0.8

TURNS = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """What to compare: each method for `seconds`, or for as many steps as the first."""

    methods: tuple[str, ...]
    workers: int = 4
    seconds: float = 25.0
    recipe: Recipe = field(default_factory=Recipe)
    equal_steps: bool = False

    def __post_init__(self) -> None:
        if not self.methods:
            raise ConfigError("no method to show: name some, or 'all'")
        if self.workers < 1:
            raise ConfigError(f"{self.workers} workers: start 1 or more")
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"{self.seconds} seconds: give a time above 0")
        for name in self.methods:
            methods.check(name, self.recipe.density, self.workers)

    def with_equal_steps(self) -> Self:
        """The same, where the time says nothing."""
        return replace(self, equal_steps=True)

    def limits(self, done: Iterable[Run]) -> Limits:
        """Of the next run, after these."""
        if not self.equal_steps:
            return Limits(self.seconds)
        first = next(iter(done), None)
        if first is not None:
            return Limits(self.seconds, most=first.steps)
        alone = len(self.methods) == 1
        return Limits(self.seconds if alone else _FIRST_SHARE * self.seconds)


def run(settings: Settings, on_progress: Callable[[ProgressEvent], None]) -> list[Run]:
    """Train with every method, on every rank of the process group."""
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores // dist.get_world_size()))
    corpus = Corpus.of(standard_library())
    if settings.equal_steps:
        done: list[Run] = []
        for method in settings.methods:
            training = Training(method, settings.recipe, corpus, settings.limits(done))
            training.go_on(1.0, on_progress)
            done.append(training.end())
        return done
    every = [
        Training(method, settings.recipe, corpus, settings.limits([]))
        for method in settings.methods
    ]
    for turn in range(1, TURNS + 1):
        for training in every:
            training.go_on(turn / TURNS, on_progress)
    return [training.end() for training in every]
