"""TopkDSA: the top k of all ranks, summed by owners of regions; all of it delivered.

After Renggli et al., "SparCML" (split all-gather), and as the baseline of Ok-Topk and
SparDL (TopkDSA). The vector is cut into P regions of the same length. Every rank sends
its entries of a region straight to the owner, who adds them up; all ranks gather the
sums, as lists or densely, whichever is fewer bytes in all. Nothing is cut, so the lists
grow with P where ranks select different entries.

Ours departs from what is published in two points. Packets have the lengths of the
codec, and the switch to dense compares them: with the default codec a full list is
shorter than 4 bytes an element, and there is no dense step. Lists are gathered in
ceil(log2 P) messages (Bruck).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import kernels, schedules
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec, Split
from thinwire.collectives.collective import (
    MakeBuffer,
    Selecting,
    Total,
    packet_nbytes,
)
from thinwire.collectives.ledger import Ledger
from thinwire.collectives.memory import CollectiveMemory
from thinwire.collectives.regions import Regions, equal_bounds, tell, tell_cost
from thinwire.cost import Cost, direct_all_gather
from thinwire.sparse import SparseVector, keep_count

_FLOAT = 4


@dataclass(frozen=True, slots=True)
class TopKDSA(Selecting):
    """Exact local top-k of `density`; every kept value is delivered in its step."""

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        ledger = Ledger.whole(x, channel)
        taken = ledger.take(keep_count(x.size, self.density))
        if channel.size == 1:
            return taken
        regions = Regions(ledger, equal_bounds(x.size, channel.size))
        own = regions.sum_own(taken)
        counts = [n for (n,) in tell(channel, [own.nnz], x.device)]
        lengths = [end - start for start, end in regions.spans]
        if _dense_is_shorter(lengths, counts, channel.codec):
            return _gathered_densely(own, regions, channel, out())
        return regions.gather(own, counts)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The most, if each region has its share: no two ranks select the same."""
        if ranks == 1:
            return Cost()
        length = -(-size // ranks)
        share = min(length, -(-keep_count(size, self.density) // ranks))
        most = min(length, share * ranks)
        to_owners = scatter_cost(packet_nbytes(codec, length, share), ranks)
        gathered = gather_cost(packet_nbytes(codec, length, most), ranks)
        if _dense_is_shorter([length], [most], codec):
            gathered = direct_all_gather(_FLOAT * length, ranks)
        return to_owners + tell_cost(1, ranks) + gathered


def scatter_cost(nbytes: int, ranks: int) -> Cost:
    """The cost of a packet to every owner, its length ahead."""
    return direct_all_gather(8, ranks) + direct_all_gather(nbytes, ranks)


def gather_cost(nbytes: int, ranks: int) -> Cost:
    """The cost of gathering a packet of every rank."""
    return schedules.cost(schedules.bruck(0, range(ranks)), nbytes)


def _dense_is_shorter(
    lengths: list[int], counts: list[int], codec: Codec | None
) -> bool:
    """Whether lists of these counts are longer than the regions as floats."""
    if codec is None or codec.nbytes(0, 0) is None:
        codec = Split()  # instead of one whose packets have no fixed length
    lists = (
        packet_nbytes(codec, length, count)
        for length, count in zip(lengths, counts, strict=True)
    )
    return sum(lists) > _FLOAT * sum(lengths)


def _gathered_densely(
    own: SparseVector, regions: Regions, channel: Channel, total: Tensor
) -> Tensor:
    kernels.scatter_(total.zero_(), own.indices, own.values)
    mine = total[slice(*regions.spans[channel.rank])].view(torch.uint8)
    nbytes = [_FLOAT * (end - start) for start, end in regions.spans]
    bodies = channel.group.all_gather(mine, nbytes=nbytes)
    for (start, end), body in zip(regions.spans, bodies, strict=True):
        total[start:end] = body.view(torch.float32)
    return total
