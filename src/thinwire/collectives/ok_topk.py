"""Ok-Topk: about the top k of the sum, from owners of regions that share it evenly.

After Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning"
(PPoPP 2022). Every rank cuts its top k at common boundaries, chosen so that each region
has its share of the entries, and sends each part straight to the region's owner. The
owner adds, and keeps what reaches a common threshold: about k entries survive in all.
If owners are left with very different numbers, entries move first; all ranks gather
what survived. Boundaries are agreed anew every 64 steps, the threshold every 32.

Ours departs from the paper where that is cheap or where the law asks for it:

- A rank's own top k is exact in every step: no threshold is estimated for it.
- The threshold comes from at most 256 numbers of every owner, not from all values: of
  what owners hold, at most one in 256 survives that would not. It is also renewed in a
  step in which the number of survivors would leave 0.8 k to 1.25 k: residuals grow, and
  an old one lets through several times k.
- What an owner cuts stays with the owner, as the sum, and not with the ranks it came
  from: it is selected there when the sum is large enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import (
    MakeBuffer,
    Selecting,
    check_whole,
    packet_nbytes,
)
from thinwire.collectives.ledger import Ledger
from thinwire.collectives.memory import CollectiveMemory, checked
from thinwire.collectives.regions import Regions, tell, tell_cost
from thinwire.collectives.step_summary import magnitude
from thinwire.collectives.topk_dsa import gather_cost, scatter_cost
from thinwire.cost import Cost
from thinwire.errors import WireError
from thinwire.sparse import SparseVector, keep_count

# Numbers that an owner tells of its magnitudes.
SAMPLES = 256
# A threshold is renewed if it lets through more than 1.25 k, or less than k / 1.25.
DRIFT = 1.25
# Entries move if an owner has more than this times the mean.
UNEVEN = 4


@dataclass(slots=True)
class OkTopKMemory(CollectiveMemory):
    """What all ranks agree on, and for how many steps more.

    `threshold` holds the bits of a float32, chosen for `k` survivors.
    """

    bounds: tuple[int, ...] = ()
    bounds_last: int = 0
    threshold: int = 0
    k: int = 0
    threshold_lasts: int = 0

    def common(self) -> dict[str, int]:
        if not self.bounds:
            return {}
        return {
            **{f"bound {i}": bound for i, bound in enumerate(self.bounds)},
            "bounds last": self.bounds_last,
            "threshold": self.threshold,
            "threshold for": self.k,
            "threshold lasts": self.threshold_lasts,
        }

    def load_dict(self, saved: Mapping[str, int]) -> None:
        # Those of a share of nodes have longer names.
        self.bounds = tuple(
            saved[f"bound {i}"] for i in range(len(saved)) if f"bound {i}" in saved
        )
        self.bounds_last = saved.get("bounds last", 0)
        self.threshold = saved.get("threshold", 0)
        self.k = saved.get("threshold for", 0)
        self.threshold_lasts = saved.get("threshold lasts", 0)


@dataclass(frozen=True, slots=True)
class OkTopK(Selecting):
    """About `density` of the sum, by a threshold, in regions of about equal shares.

    Boundaries are agreed every `regions_every` steps, the threshold at least every
    `threshold_every`.
    """

    threshold_every: int = 32
    regions_every: int = 64

    def __post_init__(self) -> None:
        # Not super(): it fails in dataclasses with slots.
        Selecting.__post_init__(self)
        remedy = "give a number of steps, from 1"
        check_whole("threshold_every", self.threshold_every, remedy)
        check_whole("regions_every", self.regions_every, remedy)

    def init(self, layout: object) -> CollectiveMemory:
        return OkTopKMemory()

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        memory = checked(memory, OkTopKMemory)
        ledger, k = Ledger.whole(x, channel), keep_count(x.size, self.density)
        taken = ledger.take(k)
        if channel.size == 1:
            return taken
        self._agree_on_bounds(taken, channel, memory)
        regions = Regions(ledger, memory.bounds)
        kept, dropped, counts = self._cut(regions.sum_own(taken), k, channel, memory)
        ledger.return_to_residual(dropped)
        if max(counts) * channel.size > UNEVEN * sum(counts):
            return regions.gather_evenly(kept, counts)
        return regions.gather(kept, counts)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The cost of a step that agrees on nothing anew, if k entries survive, evenly.

        At most 1.25 k do.
        """
        if ranks == 1:
            return Cost()
        share = -(-keep_count(size, self.density) // ranks)
        packet = packet_nbytes(codec, -(-size // ranks), share)
        packets = scatter_cost(packet, ranks) + gather_cost(packet, ranks)
        return packets + tell_cost(1, ranks)

    def _agree_on_bounds(
        self, taken: SparseVector, channel: Channel, memory: OkTopKMemory
    ) -> None:
        ranks = channel.size
        if not memory.bounds_last or len(memory.bounds) != ranks + 1:
            memory.bounds = _mean_bounds(taken, channel)
            memory.bounds_last = self.regions_every
        memory.bounds_last -= 1

    def _cut(
        self, own: SparseVector, k: int, channel: Channel, memory: OkTopKMemory
    ) -> tuple[SparseVector, SparseVector, list[int]]:
        """What survives of this rank's sum, the rest, and how much survives of each."""
        if memory.threshold_lasts and memory.k == k:
            memory.threshold_lasts -= 1
            kept, dropped = _parted(own, magnitude(memory.threshold))
            counts = [n for (n,) in tell(channel, [kept.nnz], own.values.device)]
            if k / DRIFT <= sum(counts) <= k * DRIFT:
                return kept, dropped, counts
        memory.threshold, memory.k = _threshold(own.values.abs(), k, channel), k
        memory.threshold_lasts = self.threshold_every - 1
        kept, dropped = _parted(own, magnitude(memory.threshold))
        counts = [n for (n,) in tell(channel, [kept.nnz], own.values.device)]
        return kept, dropped, counts


def _mean_bounds(taken: SparseVector, channel: Channel) -> tuple[int, ...]:
    """The mean over ranks of boundaries that cut a rank's own entries evenly."""
    ranks, size = channel.size, taken.size
    places = [i * taken.nnz // ranks for i in range(1, ranks)] if taken.nnz else []
    told = tell(channel, taken.indices[places].tolist(), taken.indices.device)
    means = [sum(column) // ranks for column in zip(*told, strict=True)]
    bounds = (0, *(means or [0] * (ranks - 1)), size)
    if list(bounds) != sorted(bounds):
        raise WireError(f"boundaries of regions out of order: {bounds}")
    return bounds


def _threshold(magnitudes: Tensor, k: int, channel: Channel) -> int:
    """The largest number that at least k of all owners' magnitudes reach, or nearly.

    As bits. Every owner tells every m-th of its own in order of size, and m.
    """
    every = max(1, -(-magnitudes.numel() // SAMPLES))
    told = magnitudes.sort(descending=True).values[every - 1 :: every]
    body = torch.cat([told.new_tensor([every]), told]).view(torch.uint8)
    heard = [
        each.view(torch.float32) for each in channel.group.all_gather(body, nbytes=None)
    ]
    values, order = torch.cat([each[1:] for each in heard]).sort(descending=True)
    weights = torch.cat([each[:1].expand(len(each) - 1) for each in heard])[order]
    enough = values[weights.double().cumsum(0) >= k]
    return int(enough[0].view(torch.int32)) if len(enough) else 0


def _parted(
    vector: SparseVector, threshold: float
) -> tuple[SparseVector, SparseVector]:
    """The entries that reach a threshold, and the others."""
    reach = vector.values.abs() >= threshold
    kept, dropped = (
        SparseVector(vector.indices[some], vector.values[some], vector.size)
        for some in (reach, ~reach)
    )
    return kept, dropped
