"""Whichever of four ways to reduce rows is cheapest by the last step's numbers.

The switch rule of S2's implementers: few rows are gathered, more are added up at their
union, by a bitmap first (`Union`) or in one flight with a table (`S2`), and from some
density on everything is. What ranks offered and how large the union was is agreed on in
passing, so that every rank chooses alike.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import gather_rows, union
from thinwire.collectives.by_rows import ByRows, Held, give_all
from thinwire.collectives.collective import Grade, Room, State, Total
from thinwire.collectives.dense import Dense
from thinwire.collectives.note import NBYTES, Note
from thinwire.collectives.s2 import S2, remember
from thinwire.cost import Cost, Link, ring_all_reduce
from thinwire.groups import Op
from thinwire.kernels import index_dtype
from thinwire.rows import Rows
from thinwire.sparse import keep_count

Way = Literal["gather", "union", "s2", "dense"]


@dataclass(frozen=True, slots=True)
class Cheapest(ByRows):
    """The fewest bytes, or the least time on a `link`; the first step is a `Union`.

    Without a link, S2 never has the fewest bytes: what it saves is rounds.
    """

    link: Link | None = None

    @property
    def grade(self) -> Grade:
        return Grade.ROUNDING

    def all_reduce_(
        self, x: Accumulator, channel: Channel, state: State, out: Room
    ) -> Total:
        way = self.way(x.size, state.width, channel.size, state.saved)
        if way != "dense" or channel.size == 1:
            return ByRows.all_reduce_(self, x, channel, state, out)
        # How many rows would have been offered is not known after this: fewer and fewer
        # are assumed, until another way is tried and tells.
        state.saved["union"] -= -(-state.saved["union"] // 16)
        state.saved.pop("peak", None)
        return Dense().all_reduce_(x, channel, state, out)

    def sum_held(self, held: Held, channel: Channel, state: State) -> Rows:
        size = held.count * held.width
        way = self.way(size, held.width, channel.size, state.saved)
        if way == "gather":
            return _gathered(held, channel, state)
        if way == "s2":
            return S2().sum_held(held, channel, state)
        return _united(held, channel, state)

    def least(self, count: int, ranks: int, state: State) -> float:
        # The other ways send floats, for which nothing is too fine.
        way = self.way(count * state.width, state.width, ranks, state.saved)
        return S2().least(count, ranks, state) if way == "s2" else 0.0

    def way(self, size: int, width: int, ranks: int, saved: dict[str, int]) -> Way:
        """What the last step's numbers speak for."""
        if not {"union", "offered"} <= saved.keys():
            return "union"
        rows, offered = saved["union"], saved["offered"]
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


def _gathered(held: Held, channel: Channel, state: State) -> Rows:
    parts = gather_rows.gather(give_all(held), channel)
    told = torch.stack([Note.of(part.values) for part in parts]).amax(0)
    total = gather_rows.add_up(parts)
    remember(state, Note.read(told), total.nnz)
    return total


def _united(held: Held, channel: Channel, state: State) -> Rows:
    told = Note.of(held.at(held.ids))
    ids = union.union_of(held, channel, (told, Op.MAX))
    remember(state, Note.read(told), len(ids))
    return union.sum_at(ids, held, channel)
