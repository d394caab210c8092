"""The exact sum of the rows that any rank offers: a bitmap, then 4 bytes an element.

An all-reduce combines the bitmaps of offered rows with OR. A second one adds up the
values of all ranks at this union. The exact baseline of S2, and OmniReduce without its
aggregators.
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.by_rows import ByRows, RankRows
from thinwire.collectives.collective import Grade
from thinwire.collectives.step_summary import RowMemory
from thinwire.cost import Cost, at_once, max_reduce, ring_all_reduce
from thinwire.errors import WireError
from thinwire.groups import Op
from thinwire.rows import Rows
from thinwire.sparse import keep_count

Rider = tuple[Tensor, Op]
"""A small tensor that travels with a bitmap."""


@dataclass(frozen=True, slots=True)
class UnionReduce(ByRows):
    """Every rank sends its values of all rows in the union, not only those it offered.

    The bytes are the same, and `x` keeps nothing in these rows.
    """

    grade = Grade.ROUNDING

    def sum_offered(self, held: RankRows, channel: Channel, memory: RowMemory) -> Rows:
        ids = union_of(held, channel)
        return sum_at(ids, held, channel)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The upper bound, where no two ranks offer the same row."""
        width = self._card_width()
        rows = most_rows(size, width, ranks, self.density)
        return card(size, width, ranks, rows=rows)


def union_of(held: RankRows, channel: Channel, *riders: Rider) -> Tensor:
    """The rows that any rank offers; the riders are combined in the same rounds."""
    bitmap = kernels.encode_bitmap(held.ids, held.count)
    channel.group.all_reduce_(*riders, (bitmap, Op.OR))
    try:
        return kernels.set_bits(bitmap, held.count)
    except ValueError as error:
        raise WireError(f"a bitmap of {held.count} rows with {error}") from error


def sum_at(ids: Tensor, held: RankRows, channel: Channel) -> Rows:
    """The sum of these rows over all ranks, which all pass the same `ids`."""
    values = held.at(ids)
    held.clear(ids)
    if len(ids):
        channel.group.all_reduce_((values, Op.SUM))
    return Rows(ids, values, held.count)


def most_rows(size: int, width: int, ranks: int, density: float) -> int:
    """The rows of a union if no two ranks offer the same one."""
    count = -(-size // width)
    return min(count, ranks * keep_count(count, density))


def card(size: int, width: int, ranks: int, *, rows: int, rider: int = 0) -> Cost:
    """The cost with a union of `rows`, and a maximum of `rider` bytes beside it."""
    if size == 0 or ranks == 1:
        return Cost()
    count = -(-size // width)
    bitmap = ring_all_reduce(-(-count // 8), ranks)
    first = at_once(bitmap, max_reduce(rider, ranks))
    return first + (ring_all_reduce(4 * rows * width, ranks) if rows else Cost())
