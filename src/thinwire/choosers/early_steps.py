"""EarlySteps: base class of choosers that reduce early steps in another way."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from thinwire.choosers.chooser import Choice, Chooser, choose
from thinwire.codecs import Codec
from thinwire.collectives import Collective, CollectiveMemory, Grade
from thinwire.cost import Cost
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True)
class EarlySteps(Chooser):
    """Another collective in early steps, then `then`.

    The step alone decides, so a resumed run continues where it was.
    """

    then: Collective

    @abstractmethod
    def at(self, step: int) -> Collective:
        """The collective of this step."""

    @property
    def grade(self) -> Grade:
        return self.then.grade

    @property
    def coded(self) -> bool:
        return self.then.coded

    @property
    def density(self) -> float | None:
        return self.then.density

    def with_density(self, density: float) -> Self:
        return replace(self, then=self.then.with_density(density))

    def check(self, ranks: int) -> None:
        self.then.check(ranks)

    def init(self, layout: Layout) -> CollectiveMemory:
        return self.then.init(layout)

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        return choose(self.at(step), memory, size, step)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return self.then.cost(size, ranks, codec)
