"""Everything, by one library all-reduce: 2 n (P-1)/P words per rank, 2(P-1) rounds."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import Grade, Room, State
from thinwire.cost import Cost, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.groups import Op
from thinwire.kernels import Marker
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True)
class Dense:
    """The group's own all-reduce in float32; `x` is delivered whole."""

    @property
    def grade(self) -> Grade:
        return Grade.ROUNDING

    @property
    def coded(self) -> bool:
        return False

    @property
    def density(self) -> None:
        return None

    def with_density(self, density: float) -> Self:
        raise ConfigError(f"dense keeps everything: it has no density to set {density}")

    def init(self, layout: Layout) -> State:
        return State()

    def marker(self, state: State) -> Marker | None:
        return None

    def all_reduce_(
        self, x: Tensor, channel: Channel, state: State, out: Room
    ) -> Tensor:
        total = out().copy_(x)
        channel.all_reduce_((total, Op.SUM))
        x.zero_()
        return total

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return ring_all_reduce(4 * size, ranks)
