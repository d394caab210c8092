"""The top k of all ranks to all ranks: k (P-1) entries per rank, P-1 rounds.

The plain sparse baseline. Its traffic grows with P, and the total lists up to k P
entries, so every kept value is delivered in the step it was selected in.
"""

from dataclasses import dataclass

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel, ListSpec
from thinwire.codecs import Codec
from thinwire.collectives.collective import MakeBuffer, Selecting, packet_nbytes
from thinwire.collectives.ledger import Ledger
from thinwire.collectives.memory import CollectiveMemory
from thinwire.cost import Cost, direct_all_gather
from thinwire.sparse import SparseVector, keep_count, sum_of


@dataclass(frozen=True, slots=True)
class AllGather(Selecting):
    """Exact local top-k of `density`, gathered and added in order of rank."""

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        k = keep_count(x.size, self.density)
        sealed = Ledger.whole(x, channel).select_and_seal(k)
        gathered = channel.all_gather(sealed, expect=ListSpec(x.size, k))
        return sum_of([each.vector for each in gathered])

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        k = keep_count(size, self.density)
        return direct_all_gather(packet_nbytes(codec, size, k), ranks)
