"""Warmup: dense steps first, then a density that falls in every step.

Early gradients change too fast to be delayed. The exponential ramp of the density is
that of Deep Gradient Compression (Lin et al., ICLR 2018, section 3.3).
"""

from dataclasses import dataclass, replace
from typing import Self

from thinwire.choosers.chooser import Choice, Chooser, choose
from thinwire.codecs import Codec
from thinwire.collectives import Collective, CollectiveMemory, Dense, Grade
from thinwire.collectives.collective import check_density
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True)
class Warmup(Chooser):
    """`dense` steps of `Dense`, `ramp` steps from density `start`, then `then`.

    The step alone decides, so a resumed run continues where it was.

    >>> from thinwire.collectives import AllGather
    >>> warmup = Warmup(AllGather(0.01), dense=1, ramp=2, start=0.25)
    >>> [warmup.at(step) for step in range(2)]
    [Dense(), AllGather(density=0.25)]
    >>> round(warmup.at(2).density, 6), warmup.at(3).density
    (0.05, 0.01)
    """

    then: Collective
    dense: int = 0
    ramp: int = 0
    start: float = 0.25

    def __post_init__(self) -> None:
        check_density(self.start)
        if self.dense < 0 or self.ramp < 0:
            raise ConfigError(
                f"a warm-up of {self.dense} dense steps and a ramp of {self.ramp}: "
                "give numbers of steps, 0 or more"
            )
        if self.ramp and self.then.density is None:
            raise ConfigError(f"{self.then} has no density to ramp; set ramp to 0")

    @property
    def grade(self) -> Grade:
        first = Dense().grade if self.dense else Grade.EXACT
        return Grade.weakest(self.then.grade, first)

    @property
    def coded(self) -> bool:
        return self.then.coded

    @property
    def density(self) -> float | None:
        return self.then.density

    def with_density(self, density: float) -> Self:
        return replace(self, then=self.then.with_density(density))

    def at(self, step: int) -> Collective:
        """The collective of this step."""
        if step < self.dense:
            return Dense()
        climbed = step - self.dense
        if climbed >= self.ramp or self.then.density is None:
            return self.then
        start = max(self.start, self.then.density)
        density = start * (self.then.density / start) ** (climbed / self.ramp)
        # Six digits: two machines' pow may differ in the last one, and k must not.
        return self.then.with_density(float(f"{density:.6g}"))

    def check(self, ranks: int) -> None:
        self.then.check(ranks)

    def init(self, layout: Layout) -> CollectiveMemory:
        return self.then.init(layout)

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        if step < self.dense:
            # Not plain: these steps are guarded, and deliver residuals as well.
            return Choice(Dense(), memory)
        return choose(self.at(step), memory, size, step)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return self.then.cost(size, ranks, codec)
