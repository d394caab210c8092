"""BySize: one collective for small vectors, which latency rules, one for large ones."""

from dataclasses import dataclass, field, replace
from typing import Self

from thinwire.choosers.chooser import Choice, Chooser, choose
from thinwire.codecs import Codec
from thinwire.collectives import Collective, CollectiveMemory, Dense, Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True)
class BySize(Chooser):
    """`large` for vectors of at least `min_size` elements, `small` for others."""

    min_size: int
    large: Collective
    small: Collective = field(default_factory=Dense)

    def __post_init__(self) -> None:
        if self.min_size < 0:
            raise ConfigError(
                f"min_size is {self.min_size}: give the number of elements from which "
                "a vector is compressed, 0 or more"
            )

    @property
    def grade(self) -> Grade:
        return Grade.weakest(self.large.grade, self.small.grade)

    @property
    def coded(self) -> bool:
        return self.large.coded or self.small.coded

    @property
    def density(self) -> float | None:
        return self.large.density

    def with_density(self, density: float) -> Self:
        return replace(self, large=self.large.with_density(density))

    def check(self, ranks: int) -> None:
        self.large.check(ranks)
        self.small.check(ranks)

    def init(self, layout: Layout) -> CollectiveMemory:
        return self._of(layout.size).init(layout)

    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        return choose(self._of(size), memory, size, step)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return self._of(size).cost(size, ranks, codec)

    def _of(self, size: int) -> Collective:
        return self.large if size >= self.min_size else self.small
