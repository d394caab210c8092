"""gTop-k as its authors released it, for comparison: it loses entries on purpose.

A value that a merge drops is given back to the rank it came from only if its index is
missing from the final list. What was dropped on one branch while its index arrived on
another is in no residual and in no total: it is lost. `collectives.GTopK` keeps
it. Never use this for anything but to show the difference.
"""

from dataclasses import dataclass

import torch

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel, ListSpec
from thinwire.codecs import Codec
from thinwire.collectives import CollectiveMemory, Grade, GTopK, MakeBuffer
from thinwire.collectives.collective import Selecting
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.kernels import Block
from thinwire.sparse import SparseVector, keep_count


@dataclass(frozen=True, slots=True)
class PublishedGTopK(Selecting):
    """The butterfly with the published residual rule; ranks are a power of two."""

    @property
    def grade(self) -> Grade:
        return Grade.NONE

    def check(self, ranks: int) -> None:
        if ranks & (ranks - 1):
            raise ConfigError(
                f"{ranks} ranks: the published rule is compared on a power of two only"
            )

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        x.set_blocks((Block.whole(x.size),))
        k = keep_count(x.size, self.density)
        mine = SparseVector(*x.select([k])[0], x.size)
        sealed = channel.seal(mine)
        x.subtract_(mine.indices, sealed.vector.values)
        total = sent = sealed.vector
        for phase in range(channel.size.bit_length() - 1):
            partner = channel.rank ^ 2**phase
            if phase:
                sealed = channel.seal(total, part=phase)
            (theirs,) = channel.exchange(
                [sealed], dst=partner, src=partner, expect=[ListSpec(x.size, k, phase)]
            )
            pair = [sealed.vector, theirs.vector]
            low, high = pair if channel.rank < partner else reversed(pair)
            total, _lost = low.add(high).split(k)
        back = ~torch.isin(mine.indices, total.indices)
        x.return_(mine.indices[back], sent.values[back])
        return total

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        return GTopK(self.density).cost(size, ranks, codec)
