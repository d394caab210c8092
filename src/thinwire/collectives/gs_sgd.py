"""gs-SGD: the largest elements of the sum, found in the sum of all sketches.

A count-sketch is linear, so the tables of all ranks add up to the table of the sum, in
which its large elements can be found. Dai et al., "A distributed SGD algorithm with
global sketching for deep learning training acceleration" (arXiv 2108.06004):
Sketched-SGD (Ivkin et al., NeurIPS 2019) without its server. A rank sketches only the
largest elements of its own, as the code of Sketched-SGD can: a residual is long and
flat, and all of it in a small table hides what is large. What travels is a table of
r x c cells and the values of q k candidates: 2 (r c + q k) (P-1)/P words per rank
around the library's ring, or (r c + q k) ceil(log2 P) along a tree, in fewer rounds.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.collective import (
    Grade,
    MakeBuffer,
    Selecting,
    check_choice,
    check_whole,
)
from thinwire.collectives.heavymix import heavy_and_random
from thinwire.collectives.memory import CollectiveMemory
from thinwire.collectives.tree import tree_sum_, tree_sum_cost
from thinwire.cost import Cost, Link, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.groups import Op
from thinwire.kernels import Block, Estimate, Hashes
from thinwire.sparse import SparseVector, keep_count

Sum = Literal["auto", "tree", "allreduce"]
Recover = Literal["largest", "heavymix"]

# Columns for each entry that is kept. Three rows of them cost as much as the values of
# the candidates. docs/experiments/notebook.md has other shapes, measured in training.
COLUMNS = 4
MOST_COLUMNS = 2**31 - 1

# The link that "auto" assumes by default: 1 Gbit/s and 50 us.
_USUAL_LINK = Link(latency=50e-6, bandwidth=125e6)


@dataclass(frozen=True, slots=True)
class GsSGD(Selecting):
    """The k largest of the sum among `candidates` x k whose estimates are largest.

    A rank sketches its `sketched` x k largest elements (None: all). What it does not
    sketch counts in the values of candidates, and stays where nothing is delivered.
    `rows` x `columns` cells (None: four times k) with fresh hashes in every step, for
    blocks of `block` elements (1: a hash for each). `rounds=2` fetches the candidates'
    values; `rounds=1` delivers k estimates as they are, and does not keep the law.
    `recover="heavymix"` takes for candidates those of the k largest that stand out, and
    random ones for the others. `sum="tree"` adds along a binomial tree, "allreduce" by
    the library, "auto" each buffer in the way that is faster on `link`. An element's
    estimate is the "median" of its cells or their "mean", which is wrong if a cell has
    another large element.
    """

    rows: int = 3
    columns: int | None = None
    candidates: int = 12
    rounds: Literal[1, 2] = 2
    sum: Sum = "auto"
    recover: Recover = "largest"
    block: int = 1024
    link: Link | None = None
    estimate: Estimate = "median"
    sketched: int | None = 4

    def __post_init__(self) -> None:
        # Not super(): it fails in dataclasses with slots.
        Selecting.__post_init__(self)
        self._check_numbers()
        check_choice("rounds", self.rounds, Literal[1, 2])
        check_choice("sum", self.sum, Sum)
        check_choice("recover", self.recover, Recover)
        check_choice("estimate", self.estimate, Estimate)
        if self.recover == "heavymix" and self.rounds == 1:
            raise ConfigError(
                "recover is 'heavymix' with one round: its random elements have no "
                "estimate to deliver; use rounds=2"
            )

    @property
    def grade(self) -> Grade:
        if self.rounds == 1:
            return Grade.NONE
        return Grade.EXACT if self.sum == "tree" else Grade.ROUNDING

    @property
    def coded(self) -> bool:
        return False

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        size = x.size
        if size == 0:
            return SparseVector(*kernels.select(x.whole(), 0), 0)
        room = out()
        x.set_blocks((Block.whole(size),))
        if self._buffers(size) == [size]:
            return self._largest_of_all(x, channel, room)
        hashes = self.hashes_for(size, channel)
        table = kernels.encode_sketch(self._to_sketch(x, room), hashes)
        self._sum_(table, channel)
        delivered = self._largest_estimates(table, hashes, room)
        if self.rounds != 1:
            indices = delivered.indices
            if self.recover == "heavymix":
                indices = heavy_and_random(delivered, table, hashes)
            values = x.gather(indices)
            self._sum_(values, channel)
            exact = SparseVector(indices, values, size)
            delivered, _ = exact.split(keep_count(size, self.density))
        x.clear_(delivered.indices)
        return delivered

    def hashes_for(self, size: int, channel: Channel) -> Hashes:
        """The hashes of this step, the same on every rank."""
        columns = self._columns_for(size)
        block = min(self.block, columns)
        return Hashes(self.rows, columns, block, channel.seed, channel.step)

    def sum_for(self, cells: int, ranks: int) -> Literal["tree", "allreduce"]:
        """How a buffer is added up; chosen by the link if "auto"."""
        if self.sum != "auto":
            return self.sum
        link = self.link or _USUAL_LINK
        up_and_down = link.seconds(tree_sum_cost(4 * cells, ranks))
        around = link.seconds(ring_all_reduce(4 * cells, ranks))
        return "tree" if up_and_down < around else "allreduce"

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        costs = (self._sum_cost(cells, ranks) for cells in self._buffers(size))
        return sum(costs, Cost())

    def _buffers(self, size: int) -> list[int]:
        """The cells of what is added up: a table and candidates, or all elements."""
        if size == 0:
            return []
        table = self.rows * self._columns_for(size)
        asked = [] if self.rounds == 1 else [self._asked(size)]
        if self.columns is None and table + sum(asked) >= size:
            return [size]
        return [table, *asked]

    def _largest_of_all(
        self, x: Accumulator, channel: Channel, room: Tensor
    ) -> SparseVector:
        """The largest elements, where the sum of all of them costs no more."""
        self._sum_(room.copy_(x.whole()), channel)
        k = keep_count(x.size, self.density)
        largest = SparseVector(*kernels.select(room, k), x.size)
        room.zero_()
        x.clear_(largest.indices)
        return largest

    def _to_sketch(self, x: Accumulator, room: Tensor) -> Tensor:
        """All of the vector, or its largest elements, written into `room`."""
        if self.sketched is None:
            return x.whole()
        count = min(x.size, self.sketched * keep_count(x.size, self.density))
        ((indices, values),) = x.select([count])
        kernels.scatter_(room.zero_(), indices, values)
        return room

    def _sum_(self, buffer: Tensor, channel: Channel) -> None:
        if self.sum_for(buffer.numel(), channel.size) == "tree":
            tree_sum_(buffer, channel)
        else:
            channel.group.all_reduce_((buffer, Op.SUM))

    def _sum_cost(self, cells: int, ranks: int) -> Cost:
        tree = self.sum_for(cells, ranks) == "tree"
        return (tree_sum_cost if tree else ring_all_reduce)(4 * cells, ranks)

    def _columns_for(self, size: int) -> int:
        if self.columns is not None:
            return self.columns
        columns = min(size, COLUMNS * keep_count(size, self.density))
        return min(columns, MOST_COLUMNS)

    def _asked(self, size: int) -> int:
        """The number of elements to find in the table."""
        k = keep_count(size, self.density)
        if self.rounds == 1 or self.recover == "heavymix":
            return k
        return min(size, self.candidates * k)

    def _largest_estimates(
        self, table: Tensor, hashes: Hashes, room: Tensor
    ) -> SparseVector:
        """The largest estimates of the table; `room` is left all zero."""
        kernels.estimate_sketch_(room, table, hashes, mean=self.estimate == "mean")
        size = room.numel()
        found = SparseVector(*kernels.select(room, self._asked(size)), size)
        room.zero_()
        return found

    def _check_numbers(self) -> None:
        odd = "choose 1, 3, 5 or 7; the median of an even number of rows is biased"
        check_whole("rows", self.rows, odd, 7)
        if self.rows % 2 == 0:
            raise ConfigError(f"rows is {self.rows}: {odd}")
        if self.columns is not None:
            remedy = (
                "give the cells of a row, from 1 to 2**31 - 1, or None for "
                f"{COLUMNS} for each element that is kept"
            )
            check_whole("columns", self.columns, remedy, MOST_COLUMNS)
        remedy = "at least 1 for each element kept, a whole number"
        check_whole("candidates", self.candidates, remedy)
        if self.sketched is not None:
            check_whole("sketched", self.sketched, f"{remedy}; or None for all")
        remedy = "give the elements that share a hash, a whole number from 1 on"
        check_whole("block", self.block, remedy)
