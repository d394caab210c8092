"""AutoWarmup: a density that falls as training gets longer, with nothing to tune.

At a density r an element waits 1/r steps on average. What is remembered must not be old
compared with the training so far, so early steps keep more: in step s (from 0) the
density is age / (s + 1), at most 1 and at least that of the method. An element then
waits for 1/age of the training so far.

The whole warm-up sends little, however long the run: for a density d, it delivers
age x (H(age / d) - H(age)) times the gradient more than the method alone, where H(n) =
1 + 1/2 + ... + 1/n. That is less than age x ln(1/d): at 1 %, 74 dense steps' worth.
"""

from dataclasses import dataclass, replace

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.choosers.chooser import Choice, choose
from thinwire.choosers.early_steps import EarlySteps
from thinwire.codecs import Codec, Split
from thinwire.collectives import (
    Collective,
    CollectiveMemory,
    Dense,
    Grade,
    MakeBuffer,
    Total,
)
from thinwire.cost import Cost
from thinwire.errors import ConfigError

AGE = 16.0
"""The training so far, over the time that an element may wait."""


@dataclass(frozen=True, slots=True)
class OrDense(Collective):
    """A collective, or `Dense` where that sends no more bytes, by their cards.

    If the length of packets depends on the data, raw ones are taken for the comparison.
    """

    sparse: Collective

    grade = Grade.ROUNDING

    @property
    def coded(self) -> bool:
        return self.sparse.coded

    @property
    def density(self) -> float | None:
        return self.sparse.density

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        chosen = self.cheaper(x.size, channel.size, channel.codec)
        return chosen.all_reduce_(x, channel, memory, out)

    def cheaper(self, size: int, ranks: int, codec: Codec | None) -> Collective:
        """What sends fewer bytes."""
        if codec is not None and codec.nbytes(size, size) is None:
            codec = Split()
        sparse, dense = self.sparse.cost(size, ranks, codec), Dense()
        least = dense.cost(size, ranks, None).nbytes
        return self.sparse if sparse.nbytes < least else dense

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return self.cheaper(size, ranks, codec).cost(size, ranks, codec)


@dataclass(frozen=True, slots=True)
class AutoWarmup(EarlySteps):
    """`then` at the density max(its own, min(1, age / (step + 1))).

    Steps whose lists would be as long as the gradient are dense.

    >>> from thinwire.collectives import AllGather
    >>> warmup = AutoWarmup(AllGather(0.01))
    >>> [warmup.at(step).density for step in (0, 15, 31, 99, 1599, 10**6)]
    [1.0, 1.0, 0.5, 0.16, 0.01, 0.01]
    """

    age: float = AGE

    def __post_init__(self) -> None:
        if self.then.density is None:
            raise ConfigError(
                f"{self.then} has no density to warm up: leave warmup='auto' out"
            )
        if not self.age > 0.0:
            raise ConfigError(f"age is {self.age}: give a number above 0")

    @property
    def grade(self) -> Grade:
        return Grade.weakest(self.then.grade, Dense().grade)

    def at(self, step: int) -> Collective:
        """The collective of this step; where that is cheaper, `Dense` replaces it."""
        final = self.then.density
        density = min(1.0, float(f"{self.age / (step + 1):.6g}"))
        if final is None or density <= final:
            return self.then
        return self.then.with_density(density)

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        now = self.at(step)
        choice = choose(now, memory, size, step)
        if now is self.then or choice.collective.density is None:
            return choice
        return replace(choice, collective=OrDense(choice.collective))
