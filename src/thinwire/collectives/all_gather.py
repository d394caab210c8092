"""Everyone's top k to everyone: k (P-1) entries per rank, P-1 rounds.

The plain sparse baseline. Its traffic grows with P, and the total lists up to k P
entries, so every kept value is delivered in the step it was selected in.
"""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import (
    Grade,
    Room,
    State,
    check_density,
    packet_nbytes,
)
from thinwire.cost import Cost, direct_all_gather
from thinwire.kernels import Block, Marker
from thinwire.layout import Layout
from thinwire.sparse import SparseVector, keep_count, sum_of


@dataclass(frozen=True, slots=True)
class AllGather:
    """Exact local top-k of `density`, gathered and added in order of rank."""

    density: float = 0.01

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def grade(self) -> Grade:
        return Grade.EXACT

    @property
    def coded(self) -> bool:
        return True

    def with_density(self, density: float) -> Self:
        return replace(self, density=density)

    def init(self, layout: Layout) -> State:
        return State(Marker((Block.whole(layout.size),)))

    def marker(self, state: State) -> Marker | None:
        return state.marker

    def all_reduce_(
        self, x: Tensor, channel: Channel, state: State, out: Room
    ) -> SparseVector:
        k = keep_count(x.numel(), self.density)
        selected = kernels.select(x, k, marker=state.marker)
        sealed = channel.seal(
            SparseVector(*selected, x.numel()),
            source=lambda indices: kernels.gather(x, indices),
        )
        kernels.subtract_at_(x, sealed.vector.indices, sealed.vector.values)
        gathered = channel.all_gather(sealed, expect=(x.numel(), k))
        return sum_of([each.vector for each in gathered])

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        k = keep_count(size, self.density)
        return direct_all_gather(packet_nbytes(codec, size, k), ranks)
