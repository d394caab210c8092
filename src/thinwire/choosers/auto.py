"""Auto: the fastest of dense and a few candidates, found by trying them.

A trial consists of visits: several reductions in a row by one collective. The first one
of a visit is not counted, because it compiles kernels, starts with cold hints, or
delivers the residual. Ranks agree on the time of the slowest rank by an all-reduce of 8
bytes, and everything else follows from agreed times, so that all ranks choose the same
collective. After a choice, the next trial waits until it costs at most 1/200 of the
time, and longer each time that it confirms the choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self
from zlib import crc32

import torch

from thinwire.channel import Channel
from thinwire.choosers.chooser import Choice, Chooser
from thinwire.choosers.trial import DENSE, Trial
from thinwire.codecs import Codec
from thinwire.collectives import (
    BF16,
    Collective,
    CollectiveMemory,
    Dense,
    Grade,
    SparDL,
)
from thinwire.collectives.collective import check_density, check_whole
from thinwire.collectives.memory import checked
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.groups import Op
from thinwire.layout import Layout

# How often the wait for the next trial may double.
DOUBLED = 64


@dataclass(slots=True)
class AutoMemory(CollectiveMemory):
    """The memories of all ways, the times of a trial, and the last choice.

    `signature` identifies the ways that were timed. The choice holds for `left` more
    steps, of `interval` in all. `typical` has the milliseconds of dense and of the
    choice in the last trial of this process: no result depends on them.
    """

    parts: tuple[CollectiveMemory, ...] = ()
    signature: int | None = None
    times: list[list[int]] = field(default_factory=list)
    choice: int | None = None
    left: int = 0
    interval: int = 0
    typical: dict[str, float] = field(default_factory=dict, compare=False)

    def load_dict(self, saved: Mapping[str, int]) -> None:
        self.signature, self.choice = saved.get("ways"), saved.get("choice")
        self.left, self.interval = saved.get("left", 0), saved.get("interval", 0)
        self.times = []
        for number, part in enumerate(self.parts):
            part.load_dict(_without(f"{number}.", saved))
            self.times.append(list(_without(f"try.{number}.", saved).values()))

    def common(self) -> dict[str, int]:
        own = {} if self.signature is None else {"ways": self.signature}
        if self.choice is not None:
            own |= {"choice": self.choice, "left": self.left, "interval": self.interval}
        for number, (part, times) in enumerate(
            zip(self.parts, self.times, strict=True)
        ):
            own |= {f"{number}.{name}": value for name, value in part.common().items()}
            own |= {f"try.{number}.{turn}": taken for turn, taken in enumerate(times)}
        return own

    def partial(self) -> dict[str, int]:
        return {
            f"{number}.{name}": value
            for number, part in enumerate(self.parts)
            for name, value in part.partial().items()
        }

    def metrics(self) -> dict[str, float]:
        """The number of the chosen way, -1 before the first choice; and times."""
        chosen = -1 if self.choice is None else self.choice
        if self.signature is None:
            return {}
        return {"choice": float(chosen), **self.typical}

    def start_over(self, signature: int) -> None:
        """Drop times and choice; the memories of the ways stay."""
        self.signature, self.choice = signature, None
        self.left = self.interval = 0
        self.times = [[] for _ in self.parts]


@dataclass(frozen=True, slots=True)
class Auto(Chooser):
    """Dense or one of `candidates`, all at one `density`, except those without one.

    In the first trial every way gets `rounds` visits of `visit` reductions each; in
    later trials, at least `recheck` steps apart, one visit. Times count only for the
    ways they were measured with: another density starts a new trial. During a ramp of
    the density, the last candidate runs; the trial begins when the ramp is over.

    >>> [type(way).__name__ for way in Auto(0.02).ways]
    ['Dense', 'BF16', 'SparDL']
    """

    density: float = 0.01
    candidates: tuple[Collective, ...] = field(
        default_factory=lambda: (BF16(), SparDL())
    )
    rounds: int = 2
    visit: int = 4
    recheck: int = 1000
    # Identifies all of the above.
    signature: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_density(self.density)
        remedy = "give the reductions by one method in a row, 2 or more"
        check_whole("rounds", self.rounds, "give the visits to every method, 1 or more")
        check_whole("visit", self.visit, remedy)
        if self.visit == 1:  # the first reduction of a visit is not counted
            raise ConfigError(f"visit is 1: {remedy}")
        check_whole("recheck", self.recheck, "give a number of steps, 1 or more")
        if not self.candidates:
            raise ConfigError("candidates is empty: give at least one method to try")
        if any(isinstance(each, Auto) for each in self.candidates):
            raise ConfigError("auto cannot try itself: give other candidates")
        placed = tuple(_at_density(each, self.density) for each in self.candidates)
        object.__setattr__(self, "candidates", placed)
        object.__setattr__(self, "signature", crc32(repr(self).encode()))

    @property
    def ways(self) -> tuple[Collective, ...]:
        """All collectives to choose from."""
        return (Dense(), *self.candidates)

    @property
    def grade(self) -> Grade:
        return Grade.weakest(*(way.grade for way in self.ways))

    @property
    def coded(self) -> bool:
        return any(way.coded for way in self.candidates)

    def with_density(self, density: float) -> Self:
        return replace(self, density=density)

    def check(self, ranks: int) -> None:
        for way in self.ways:
            way.check(ranks)

    def init(self, layout: Layout) -> AutoMemory:
        parts = tuple(way.init(layout) for way in self.ways)
        return AutoMemory(parts=parts, times=[[] for _ in parts])

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        memory = checked(memory, AutoMemory)
        number = self.number(memory)
        return Choice(
            self.ways[number],
            memory.parts[number],
            plain=number == DENSE,
            timed=not self._settled(memory),
            finish=lambda seconds, channel: self.finish(seconds, channel, memory),
        )

    def finish(self, seconds: float, channel: Channel, memory: AutoMemory) -> None:
        """Record the time of a reduction in a trial, or count the steps until one."""
        if self._settled(memory):
            memory.left -= 1
            return
        number = self.number(memory)
        if memory.signature != self.signature:
            memory.start_over(self.signature)
        slowest = torch.tensor([1e9 * seconds], dtype=torch.float64)
        channel.group.all_reduce_((slowest, Op.MAX))
        memory.times[number].append(int(slowest.item()))
        if channel.size == 1 or self._next(memory) is None:
            self._settle(memory, channel.size)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The cost of dense; another way is chosen only if it takes less time."""
        return Dense().cost(size, ranks, codec)

    def number(self, memory: AutoMemory) -> int:
        """The number of the next way."""
        if not self._settled(memory):
            following = self._next(memory)
            if following is not None:
                return following
        return self.choice(memory) or DENSE

    def choice(self, memory: AutoMemory) -> int | None:
        """The number of the chosen way; None before the first choice."""
        if memory.choice is None or memory.signature != self.signature:
            return None
        return memory.choice if 0 <= memory.choice <= len(self.candidates) else None

    def _settled(self, memory: AutoMemory) -> bool:
        return memory.left > 0 and self.choice(memory) is not None

    def _trial(self, memory: AutoMemory) -> Trial:
        known = memory.signature == self.signature
        return Trial(memory.times if known else [[] for _ in self.ways], self.visit)

    def _next(self, memory: AutoMemory) -> int | None:
        return self._trial(memory).next(
            self.rounds if self.choice(memory) is None else 1
        )

    def _settle(self, memory: AutoMemory, ranks: int) -> None:
        """Choose, and set the number of steps until the next trial."""
        before, waited = self.choice(memory), memory.interval
        trial = self._trial(memory)
        chosen = DENSE if ranks == 1 else trial.fastest(before or DENSE)
        longer = min(2 * waited, DOUBLED * self.recheck) if chosen == before else 0
        wait = max(self.recheck, longer, trial.affordable_wait(chosen))
        times = {"dense_ms": trial.typical(DENSE), "choice_ms": trial.typical(chosen)}
        memory.typical = {n: 1e-6 * ns for n, ns in times.items() if ns is not None}
        memory.start_over(self.signature)
        memory.choice, memory.left, memory.interval = chosen, wait, wait


def _at_density(collective: Collective, density: float) -> Collective:
    if not isinstance(collective, Collective):
        raise ConfigError(
            f"candidates has {collective!r}: give names of methods, or collectives"
        )
    given = collective.density
    return collective if given is None else collective.with_density(density)


def _without(prefix: str, saved: Mapping[str, int]) -> dict[str, int]:
    """The entries whose names have this prefix, without it."""
    found = {name: value for name, value in saved.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items()}
