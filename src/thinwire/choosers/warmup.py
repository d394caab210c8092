"""Warmup: dense steps first, then a density that falls in every step.

Early gradients change too fast to be delayed. The exponential ramp of the density is
that of Deep Gradient Compression (Lin et al., ICLR 2018, section 3.3).
"""

from dataclasses import dataclass

from thinwire.choosers.chooser import Choice
from thinwire.choosers.early_steps import EarlySteps
from thinwire.collectives import Collective, CollectiveMemory, Dense, Grade
from thinwire.collectives.collective import check_density
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Warmup(EarlySteps):
    """`dense` steps of `Dense`, `ramp` steps from density `start`, then `then`.

    >>> from thinwire.collectives import AllGather
    >>> warmup = Warmup(AllGather(0.01), dense=1, ramp=2, start=0.25)
    >>> [warmup.at(step) for step in range(2)]
    [Dense(), AllGather(density=0.25)]
    >>> round(warmup.at(2).density, 6), warmup.at(3).density
    (0.05, 0.01)
    """

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

    def at(self, step: int) -> Collective:
        if step < self.dense:
            return Dense()
        climbed = step - self.dense
        if climbed >= self.ramp or self.then.density is None:
            return self.then
        start = max(self.start, self.then.density)
        density = start * (self.then.density / start) ** (climbed / self.ramp)
        # Six digits: two machines' pow may differ in the last one, and k must not.
        return self.then.with_density(float(f"{density:.6g}"))

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        if step < self.dense:
            # Not plain: these steps are guarded, and deliver residuals as well.
            return Choice(Dense(), memory)
        return EarlySteps.choose(self, memory, size, step)
