"""One library all-reduce of all: 2 n (P-1)/P words per rank, 2(P-1) rounds."""

from dataclasses import dataclass

from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import Collective, Grade, MakeBuffer
from thinwire.collectives.memory import CollectiveMemory
from thinwire.cost import Cost, ring_all_reduce
from thinwire.groups import Op


@dataclass(frozen=True, slots=True)
class Dense(Collective):
    """The group's own all-reduce in float32, which delivers all of `x`."""

    grade = Grade.ROUNDING

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Tensor:
        total = out().copy_(x.whole())
        channel.group.all_reduce_((total, Op.SUM))
        x.zero_()
        return total

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return ring_all_reduce(4 * size, ranks)
