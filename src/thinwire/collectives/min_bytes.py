"""MinBytes: in each step, the way to reduce rows that sends the fewest bytes.

The switch rule of S2's implementers. The four ways: gather all rows; sum the union of
rows after a bitmap of it (`UnionReduce`) or together with the bitmap (`S2`); sum all
elements (`Dense`). The counts of the last step decide. Ranks agree on these counts in
every step, so that all ranks choose the same way.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import gather_rows
from thinwire.collectives import union_reduce as union
from thinwire.collectives.by_rows import ByRows, RankRows, take_offered
from thinwire.collectives.collective import Grade, MakeBuffer, Total
from thinwire.collectives.dense import Dense
from thinwire.collectives.memory import CollectiveMemory, checked
from thinwire.collectives.s2 import S2
from thinwire.collectives.step_summary import NBYTES, RowMemory, StepSummary
from thinwire.cost import Cost, Link, ring_all_reduce
from thinwire.groups import Op
from thinwire.kernels import index_dtype
from thinwire.rows import Rows
from thinwire.sparse import keep_count

Way = Literal["gather", "union", "s2", "dense"]


@dataclass(frozen=True, slots=True)
class MinBytes(ByRows):
    """The way with the fewest bytes or, on a `link`, the least time.

    The first step is a `UnionReduce`. Without a link S2 is never chosen: it saves
    rounds, not bytes.
    """

    link: Link | None = None

    grade = Grade.ROUNDING

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        memory = checked(memory, RowMemory)
        way = self.way(x.size, memory.width, channel.size, memory)
        if way != "dense" or channel.size == 1:
            return ByRows.all_reduce_(self, x, channel, memory, out)
        # A dense step does not count rows: expect fewer, until another way counts them.
        expected = memory.union or 0
        memory.union, memory.peak = expected - -(-expected // 16), None
        return Dense().all_reduce_(x, channel, memory, out)

    def sum_offered(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        size = held.count * held.width
        way = self.way(size, held.width, channel.size, memory)
        if way == "gather":
            return _gathered(held, channel, memory)
        if way == "s2":
            return S2().sum_offered(held, channel, memory)
        return _united(held, channel, memory)

    def least(self, count: int, ranks: int, memory: RowMemory) -> float:
        # The other ways send floats, which round nothing to zero.
        way = self.way(count * memory.width, memory.width, ranks, memory)
        return S2().least(count, ranks, memory) if way == "s2" else 0.0

    def way(self, size: int, width: int, ranks: int, memory: RowMemory) -> Way:
        """The way of the next step."""
        rows, offered = memory.union, memory.offered
        if rows is None or offered is None:
            return "union"
        return self._best(size, width, ranks, rows=rows, offered=offered)[0]

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """A step after the first where no two ranks offer the same row."""
        if size == 0 or ranks == 1:
            return Cost()
        width = self._card_width()
        rows = union.most_rows(size, width, ranks, self.density)
        offered = keep_count(-(-size // width), self.density)
        return self._best(size, width, ranks, rows=rows, offered=offered)[1]

    def _best(
        self, size: int, width: int, ranks: int, *, rows: int, offered: int
    ) -> tuple[Way, Cost]:
        count = -(-size // width)
        id_nbytes = index_dtype(count).itemsize
        columns = S2().columns_for(count, rows)
        costs: dict[Way, Cost] = {
            "gather": gather_rows.card(width, ranks, offered, id_nbytes=id_nbytes),
            "union": union.card(size, width, ranks, rows=rows, rider=NBYTES),
            "dense": ring_all_reduce(4 * size, ranks),
        }
        if columns:
            costs["s2"] = S2().card(size, width, ranks, columns=columns, stuck=0)
        return min(costs.items(), key=lambda way: self._weight(way[1]))

    def _weight(self, cost: Cost) -> tuple[float, int]:
        if self.link is None:
            return cost.nbytes, cost.rounds
        return self.link.seconds(cost), cost.rounds


def _gathered(held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
    parts = gather_rows.gather(take_offered(held), channel)
    most = torch.stack([StepSummary.of(part.values) for part in parts]).amax(0)
    total = gather_rows.add_up(parts)
    memory.record(StepSummary.read(most), total.nnz)
    return total


def _united(held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
    mine = StepSummary.of(held.at(held.ids))
    ids = union.union_of(held, channel, (mine, Op.MAX))
    memory.record(StepSummary.read(mine), len(ids))
    return union.sum_at(ids, held, channel)
