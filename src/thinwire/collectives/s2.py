"""S2 Reducer: a sketch and a bitmap of the offered rows, sent at the same time.

Ge et al., "S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed
Deep Learning" (ICASSP 2022). Every rank adds its rows into a small table of cells, each
row into a few that its number hashes to. Tables are added up and bitmaps combined with
OR by library all-reduces that run at the same time, which takes half the rounds of
`UnionReduce`, for a third more bytes.

The paper estimates a row by the median of its cells. By default they are peeled instead
(Li et al., "Accelerating Distributed Deep Learning using Lossless Homomorphic
Compression", arXiv 2402.07529): all ranks know which rows are in the table, so one that
is alone in a cell is read there and subtracted from its other cells, in which other
rows are then alone. Cells hold integers that wrap around, so the values are exact and
the order does not matter. Rows that cannot be peeled are added up once more, without a
table.
"""

from dataclasses import dataclass
from math import inf, isfinite, isqrt, nan
from typing import Literal

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import union_reduce as union
from thinwire.collectives.by_rows import ByRows, RankRows, take_offered
from thinwire.collectives.collective import Grade, check_choice, check_whole
from thinwire.collectives.fixed_point import FixedPoint
from thinwire.collectives.step_summary import (
    NBYTES,
    RowMemory,
    StepSummary,
    magnitude,
)
from thinwire.collectives.table import TablePlan
from thinwire.cost import Cost, at_once, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.groups import Op
from thinwire.kernels import Estimate
from thinwire.rows import Rows

Decode = Literal["peel", "median", "mean"]

# Cells per row of the union, by rows of the table: 6 % above the threshold below which
# almost everything gets stuck, so that the union may grow as much in a step.
CELLS_TO_PEEL = {3: 1.3, 4: 1.38, 5: 1.52, 6: 1.67, 7: 1.83}
# Below this the paper's estimate is useless (at 4, the squared error is a fifth).
CELLS_TO_ESTIMATE = 4.0
# Bits by which magnitudes may grow in a step before the table is given up.
SPARE = 2
# Bits that a table may lose where there is no residual, the spare ones included: then
# magnitudes may fall to a quarter in a step before the table is given up.
LOSS = 4
MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class S2(ByRows):
    """Exact where `decode` is "peel", else an estimate by "median" or "mean".

    The table has `rows` rows of `columns` cells. "auto" columns follow the last union;
    in the first step, or if the table would be no smaller than the vector, rows are
    added up after their bitmap, as in `UnionReduce`.

    Peeling sends multiples of a power of two that follows from the largest magnitude of
    the step before; the rounding errors stay in `x`. Without a residual, or if all
    values are smaller, rows are added up once more with a smaller power.
    """

    rows: int = 3
    columns: int | Literal["auto"] = "auto"
    decode: Decode = "peel"

    def __post_init__(self) -> None:
        # Not super(): it fails in dataclasses with slots.
        ByRows.__post_init__(self)
        check_choice("decode", self.decode, Decode)
        remedy = f"a table has 1 to {MOST_ROWS}, a whole number"
        check_whole("rows", self.rows, remedy, MOST_ROWS)
        if self.decode == "median" and self.rows % 2 == 0:
            raise ConfigError(
                f"rows is {self.rows}: the median needs an odd number, since that of "
                "an even one is biased"
            )
        self._check_columns()

    @property
    def grade(self) -> Grade:
        return Grade.EXACT if self.decode == "peel" else Grade.NONE

    def sum_offered(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        if self.decode == "peel":
            return self._peeled(held, channel, memory)
        columns = self.columns_for(held.count, memory.union)
        if columns == 0:
            total = union.sum_at(union.union_of(held, channel), held, channel)
        else:
            keys = self._keys(channel)
            total = _estimated(held, channel, columns, keys, how=self.decode)
        memory.record_union(total.nnz)
        return total

    def columns_for(self, count: int, rows: int | None) -> int:
        """Columns for a union of `rows` among `count` rows; 0 for no table."""
        if self.columns != "auto":
            return self.columns
        if rows is None:
            return 0
        # Few rows vary more: with these, nine of ten unions are peeled at once.
        cells = int(self._cells_per_row * rows) + 3 * isqrt(rows) + 6
        # A few sizes only, so that buffers are used again.
        shift = max(cells.bit_length() - 5, 0)
        columns = -(-((-(-cells >> shift)) << shift) // self.rows)
        return columns if self.rows * columns < count else 0

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """A step after the first where no two ranks offer the same row."""
        width = self._card_width()
        rows = union.most_rows(size, width, ranks, self.density)
        columns = self.columns_for(-(-size // width), rows)
        fits = self.rows * columns >= self._cells_per_row * rows
        estimated = columns > 0 and self.decode != "peel"
        stuck = 0 if fits or estimated else rows
        return self.card(size, width, ranks, columns=columns, stuck=stuck)

    def card(
        self, size: int, width: int, ranks: int, *, columns: int, stuck: int
    ) -> Cost:
        """The cost of a table of `columns`, and of adding up `stuck` rows after it."""
        if size == 0 or ranks == 1:
            return Cost()
        note = NBYTES if self.decode == "peel" else 0
        after = union.card(size, width, ranks, rows=stuck, rider=note)
        table = ring_all_reduce(4 * self.rows * columns * width, ranks)
        return Cost(after.rounds, at_once(after, table).nbytes)

    def _peeled(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        offered = held.at(held.ids)
        mine = StepSummary.of(offered)
        plan = self._plan(held.count, mine, channel, memory)
        table = None if plan is None else plan.filled(held.ids, offered)
        riders = [] if table is None else [(table.cells, Op.SUM)]
        ids = union.union_of(held, channel, *riders, (mine, Op.MAX))
        summary = StepSummary.read(mine)
        memory.record(summary, len(ids))
        if not isfinite(summary.peak):
            held.clear(held.ids)
            return Rows(ids, offered.new_full((len(ids), held.width), nan), held.count)
        if table is None or not _serves(table.plan.point, summary.peak, held):
            return _sum_exactly(ids, held, channel, summary.peak)
        values, stuck = table.peel_(ids)
        if len(stuck) == 0:
            held.remove(held.ids, table.sent)
            return Rows(ids, values, held.count)
        left = ids[stuck]
        delivered = ~torch.isin(held.ids, left)
        held.remove(held.ids[delivered], table.sent[delivered])
        values[stuck] = _sum_exactly(left, held, channel, summary.peak).values
        return Rows(ids, values, held.count)

    def least(self, count: int, ranks: int, memory: RowMemory) -> float:
        # Smaller values round to zero: the table would fill up with rows of zeros.
        bits = memory.peak
        if bits is None or self.decode != "peel":
            return 0.0
        return 2.0 ** FixedPoint.of(magnitude(bits), ranks, SPARE).exponent

    def _plan(
        self, count: int, mine: Tensor, channel: Channel, memory: RowMemory
    ) -> TablePlan | None:
        """How to fill a table; None for no table."""
        columns = self.columns_for(count, memory.union)
        if columns == 0:
            return None
        bits = memory.peak
        if bits is None:
            now = mine.clone()
            channel.group.all_reduce_((now, Op.MAX))
            point = FixedPoint.of(StepSummary.read(now).peak, channel.size)
        else:
            point = FixedPoint.of(magnitude(bits), channel.size, SPARE)
        return TablePlan(self._keys(channel), columns, point)

    def _keys(self, channel: Channel) -> Tensor:
        # Fresh in every step, or the same rows would get stuck, or mixed up, for ever.
        return kernels.hash_keys(channel.seed, channel.step, self.rows)

    @property
    def _cells_per_row(self) -> float:
        if self.decode != "peel":
            return CELLS_TO_ESTIMATE
        return CELLS_TO_PEEL.get(self.rows, inf)

    def _check_columns(self) -> None:
        if self.columns == "auto":
            if self.decode == "peel" and self.rows not in CELLS_TO_PEEL:
                raise ConfigError(
                    f"rows is {self.rows}: give the columns too, or choose one of "
                    f"{list(CELLS_TO_PEEL)}, for which it is known how many to take"
                )
        else:
            remedy = "give the cells of a row, 1 to 2**31 - 1, or 'auto'"
            check_whole("columns", self.columns, remedy, 2**31 - 1)


def _estimated(
    held: RankRows, channel: Channel, columns: int, keys: Tensor, *, how: Estimate
) -> Rows:
    """Estimate the rows from the cells; what was offered is removed from `x`."""
    mine = take_offered(held)
    cells = kernels.sketch_rows(mine.ids, mine.values, keys, columns)
    ids = union.union_of(held, channel, (cells, Op.SUM))
    return Rows(ids, kernels.estimate_rows(cells, ids, keys, how), held.count)


def _serves(point: FixedPoint, peak: float, held: RankRows) -> bool:
    """Whether multiples are exact enough for rows up to `peak`."""
    most = point.bits - 1 if held.remembers else LOSS
    return point.holds(peak) and point.lost(peak) <= most


def _sum_exactly(ids: Tensor, held: RankRows, channel: Channel, peak: float) -> Rows:
    """The sum of these rows, of magnitudes up to `peak`, as multiples."""
    point = FixedPoint.of(peak, channel.size)
    multiples = point.multiples(held.at(ids))
    held.remove(ids, point.value(multiples))
    if len(ids):
        channel.group.all_reduce_((multiples, Op.SUM))
    return Rows(ids, point.value(multiples), held.count)
