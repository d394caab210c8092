"""Small vectors by one collective, large ones by another: latency rules the former."""

from dataclasses import dataclass, field, replace
from typing import Self

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import Collective, Grade, Room, State, Total
from thinwire.collectives.dense import Dense
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True)
class BySize:
    """`large` from `min_size` elements on, `small` below."""

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
        grades = self.large.grade, self.small.grade
        return max(grades, key=list(Grade).index)

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

    def init(self, layout: Layout) -> State:
        state = self._chosen(layout.size).init(layout)
        state.size = layout.size
        return state

    def direct(self, state: State, step: int) -> bool:
        return self._chosen(state.size).direct(state, step)

    def curious(self, state: State, step: int) -> bool:
        return self._chosen(state.size).curious(state, step)

    def learn(self, seconds: float, channel: Channel, state: State) -> None:
        self._chosen(state.size).learn(seconds, channel, state)

    def all_reduce_(
        self, x: Accumulator, channel: Channel, state: State, out: Room
    ) -> Total:
        return self._chosen(x.size).all_reduce_(x, channel, state, out)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return self._chosen(size).cost(size, ranks, codec)

    def _chosen(self, size: int) -> Collective:
        return self.large if size >= self.min_size else self.small
