"""Whichever of dense and a few candidates is the fastest here, found by trying.

Costs what the choice costs. Ranks that try something agree on the slowest one's time by
an all-reduce of 8 bytes, and everything else follows from agreed times, so that all
ranks choose alike and never mix. There is one `x`: a change of method strands nothing.

Trying goes by visits: some reductions in a row by one collective, of which the first is
not counted, because it compiles, finds its hints cold, or delivers what the one before
still owed. What is far behind is not visited to the end. The choice holds for so many
steps that trying again costs at most 1/200 of the time, and longer each time that it
is confirmed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from statistics import median
from typing import Self
from zlib import crc32

import torch

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.bf16 import BF16
from thinwire.collectives.collective import (
    Collective,
    Grade,
    Room,
    State,
    Total,
    check_density,
    check_whole,
)
from thinwire.collectives.dense import Dense
from thinwire.collectives.spardl import SparDL
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.groups import Op
from thinwire.layout import Layout

Saved = Mapping[str, int]
Times = Sequence[Sequence[int]]

# Which of the ways is dense: what is preferred where nothing else is clearly faster.
DENSE = 0
# A difference that is not worth a change: the larger of a share and of nanoseconds.
SHARE = 0.02
LEAST = 150_000
# What a first reduction may take by accident; longer ones need no second look where
# they are so many times slower, counted ones where they are.
ACCIDENT = 500_000_000
HOPELESS, BEHIND = 10, 2
# Of the time until then, what trying again may cost; and how often the wait doubles.
BUDGET = 0.005
DOUBLED = 64


@dataclass(slots=True)
class Tried(State):
    """The state of every way; what they save is in the common `saved`, by number."""

    parts: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True)
class Auto:
    """Dense or one of `candidates`, all at one `density`; whole ones have none.

    At first every way gets `rounds` visits of `visit` reductions each, later one
    visit, after `recheck` steps at least. Times are those told to `learn`, as the
    slowest rank saw them. What the ways are decides whether times still hold: another
    density starts all over, so that a ramp of the density runs the last candidate, and
    trying begins when the ramp is over.

    >>> Auto(0.02).ways[-1]
    SparDL(density=0.02, teams=1, gather='auto', partition='interleaved', link=None)
    """

    density: float = 0.01
    candidates: tuple[Collective, ...] = field(
        default_factory=lambda: (BF16(), SparDL())
    )
    rounds: int = 2
    visit: int = 4
    recheck: int = 1000
    # Of the above: times that were measured with other ways are not about these.
    signature: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_density(self.density)
        remedy = "give the reductions by one method in a row, 2 or more"
        check_whole("rounds", self.rounds, "give the visits to every method, 1 or more")
        check_whole("visit", self.visit, remedy)
        if self.visit == 1:  # and that one does not count
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
        """All there is to choose from."""
        return (Dense(), *self.candidates)

    @property
    def grade(self) -> Grade:
        return max((way.grade for way in self.ways), key=list(Grade).index)

    @property
    def coded(self) -> bool:
        return any(way.coded for way in self.candidates)

    def with_density(self, density: float) -> Self:
        return replace(self, density=density)

    def check(self, ranks: int) -> None:
        for way in self.ways:
            way.check(ranks)

    def init(self, layout: Layout) -> State:
        return Tried(parts=tuple(way.init(layout) for way in self.ways))

    def direct(self, state: State, step: int) -> bool:
        return self.number(state.saved) == DENSE

    def curious(self, state: State, step: int) -> bool:
        return not self._settled(state.saved)

    def all_reduce_(
        self, x: Accumulator, channel: Channel, state: State, out: Room
    ) -> Total:
        number, part = self._part(state)
        total = self.ways[number].all_reduce_(x, channel, part, out)
        for key in _keys_of(number, state.saved):
            del state.saved[key]
        state.saved.update({f"{number}.{k}": v for k, v in part.saved.items()})
        return total

    def learn(self, seconds: float, channel: Channel, state: State) -> None:
        saved = state.saved
        if self._settled(saved):
            saved["left"] -= 1
            return
        number = self.number(saved)
        if saved.get("ways") != self.signature:
            _forget(saved)
            saved["ways"] = self.signature
        note = torch.tensor([1e9 * seconds], dtype=torch.float64)
        channel.group.all_reduce_((note, Op.MAX))
        times = self._times(saved)
        saved[f"try.{number}.{len(times[number])}"] = int(note.item())
        if channel.size == 1 or self._next(saved) is None:
            self._settle(saved, channel.size)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """That of dense: anything else is chosen only because it took less time."""
        return Dense().cost(size, ranks, codec)

    def number(self, saved: Saved) -> int:
        """Which of the ways is next."""
        if self._settled(saved):
            return saved["choice"]
        following = self._next(saved)
        return self.choice(saved) or DENSE if following is None else following

    def choice(self, saved: Saved) -> int | None:
        """Which of the ways was chosen; None before the first choice."""
        chosen = saved.get("choice", -1)
        known = saved.get("ways") == self.signature
        return chosen if known and 0 <= chosen <= len(self.candidates) else None

    def _settled(self, saved: Saved) -> bool:
        return saved.get("left", 0) > 0 and self.choice(saved) is not None

    def _part(self, state: State) -> tuple[int, State]:
        if not isinstance(state, Tried):
            raise ConfigError("the state of another collective: make one with init()")
        number = self.number(state.saved)
        part = state.parts[number]
        part.saved = {
            key.removeprefix(f"{number}."): state.saved[key]
            for key in _keys_of(number, state.saved)
        }
        return number, part

    def _times(self, saved: Saved) -> list[list[int]]:
        """The agreed nanoseconds of every reduction of every way in this trial."""
        if saved.get("ways") != self.signature:
            return [[] for _ in self.ways]
        return [list(_tries(saved, number)) for number in range(len(self.ways))]

    def _next(self, saved: Saved) -> int | None:
        """The way to try next; None if enough is known to choose."""
        times = self._times(saved)
        rounds = self.rounds if self.choice(saved) is None else 1
        open_ways = [
            number
            for number, each in enumerate(times)
            if len(each) < rounds * self.visit and not self._hopeless(number, times)
        ]
        for number in open_ways:
            if len(times[number]) % self.visit:
                return number  # a visit is finished before the next one
        rivals = [n for n in range(len(times)) if not self._hopeless(n, times)]
        if not open_ways or (len(rivals) == 1 and times[rivals[0]]):
            return None
        # The last first: it is meant to be the fastest, and spares the others.
        return min(open_ways, key=lambda number: (len(times[number]), -number))

    def _hopeless(self, number: int, times: Times) -> bool:
        """Whether this way is so far behind another that nothing more is needed."""
        mine = times[number]
        if not mine:
            return False
        typical = [self._typical(each) for each in times if self._counted(each)]
        best = min(typical, default=None)
        if best is None:
            return False
        counted = self._counted(mine)
        if not counted:
            return mine[0] > max(HOPELESS * best, ACCIDENT)
        return min(counted) > BEHIND * best

    def _counted(self, times: Sequence[int]) -> list[int]:
        return [each for n, each in enumerate(times) if n % self.visit]

    def _typical(self, times: Sequence[int]) -> float:
        return median(self._counted(times) or times)

    def _settle(self, saved: dict[str, int], ranks: int) -> None:
        """Choose, and say until when."""
        before, waited = self.choice(saved), saved.get("interval", 0)
        times = self._times(saved)
        rivals = [n for n in range(len(times)) if not self._hopeless(n, times)]
        typical = {n: self._typical(times[n]) for n in rivals if times[n]}
        chosen = DENSE if ranks == 1 else _preferred(typical, before or DENSE)
        again = min(2 * waited, DOUBLED * self.recheck) if chosen == before else 0
        wait = max(self.recheck, again, self._patience(times, chosen))
        _forget(saved)
        saved.update(ways=self.signature, choice=chosen, left=wait, interval=wait)

    def _patience(self, times: Times, chosen: int) -> int:
        """The steps after which another trial like this one is within the budget."""
        if not times[chosen]:
            return 0
        usual = self._typical(times[chosen])
        visits = [self._counted(each)[: self.visit] or each for each in times]
        extra = sum(max(0.0, each - usual) for visit in visits for each in visit)
        return round(extra / (BUDGET * max(usual, 1)))


def _at_density(collective: Collective, density: float) -> Collective:
    if not hasattr(collective, "all_reduce_"):
        raise ConfigError(f"a candidate is {collective!r}: give a collective")
    given = collective.density
    return collective if given is None else collective.with_density(density)


def _keys_of(number: int, saved: Saved) -> list[str]:
    """Under which keys a way has saved something of its own."""
    return [key for key in saved if key.startswith(f"{number}.")]


def _tries(saved: Saved, number: int) -> Iterator[int]:
    keys = (f"try.{number}.{n}" for n in count())
    return (saved[key] for key in takewhile(saved.__contains__, keys))


def _forget(saved: dict[str, int]) -> None:
    """Drop times and the choice; what the ways themselves have saved stays."""
    for key in list(saved):
        if key in ("ways", "choice", "left", "interval") or key.startswith("try."):
            del saved[key]


def _preferred(typical: Mapping[int, float], usual: int) -> int:
    """The fastest, or what is usual if that is about as fast."""
    fastest = min(typical, key=typical.__getitem__)
    if usual not in typical:
        return fastest
    allowance = max(SHARE * typical[fastest], LEAST)
    return usual if typical[usual] <= typical[fastest] + allowance else fastest
