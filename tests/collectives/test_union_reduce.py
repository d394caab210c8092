"""UnionReduce: the rows that any rank offers, with the values of all ranks."""

import pytest
import torch

from tests.collectives.reductions import reduce
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import RowMemory, UnionReduce
from thinwire.cost import Cost
from thinwire.errors import WireError
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.rows import Rows


def test_every_rank_gives_all_it_has_at_the_union():
    # Rank 0 offers element 0, rank 1 offers element 3: both give both.
    done = reduce(UnionReduce(0.2), [[9.0, 1, 2, 3, 4], [1.0, 2, 3, 8, 4]])
    assert done.total == {0: 10.0, 3: 11.0}
    assert done.after == [[0, 1, 2, 0, 4], [0, 2, 3, 0, 4]]


def test_blocks_with_a_short_last_one():
    xs = [[0.0, 0, 5, 0, 0, 0, 1], [0.0, 0, 1, 0, 0, 0, 6]]
    done = reduce(UnionReduce(0.5, "block", width=2), xs)
    assert done.total == {2: 6.0, 3: 0.0, 6: 7.0}
    assert done.after == [[0.0] * 7] * 2


def test_rows_of_a_model_s_matrices():
    layout = Layout(("embedding", "bias"), ((5, 4), (8,)))

    def body(group):
        x = torch.zeros(28)
        x[4 * group.rank + 1] = 1.0
        x[21] = 0.5
        union = UnionReduce(0.3, "row")
        state = union.init(layout)
        x = Accumulator.of(x)
        total = union.all_reduce_(x, Channel(group), state, lambda: None)
        return total.to_dict(), int(x.whole().count_nonzero())

    for total, left in simulate(3, body):
        assert total.keys() == {*range(12), 20, 21, 22, 23}
        assert (total[1], total[5], total[9], total[21]) == (1.0, 1.0, 1.0, 1.5)
        assert left == 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65])
def test_everything_is_dense(size):
    xs = [[float(rank + i + 1) for i in range(size)] for rank in range(3)]
    done = reduce(UnionReduce(1.0), xs)
    assert list(done.total.values()) == [3.0 * (i + 1) + 3 for i in range(size)]
    assert not any(map(any, done.after))


def test_nobody_offers_anything():
    done = reduce(UnionReduce(0.5), [[0.0] * 9] * 4)
    assert done.total == {}


def test_its_card_states_the_most():
    # A bitmap of 125 bytes, and 4 x 10 elements of 4 bytes, 3/2 times each.
    assert UnionReduce(0.01).cost(1000, 4, None) == Cost(12, 188 + 240)
    # 16 blocks, of which 4 x 1 may be offered.
    blocks = UnionReduce(0.01, "block")
    assert blocks.cost(1000, 4, None) == Cost(12, 3 + 4 * 64 * 4 * 3 // 2)
    assert UnionReduce(0.5).cost(1000, 8, None).nbytes == 219 + 7000
    assert UnionReduce().cost(1000, 1, None) == UnionReduce().cost(0, 4, None) == Cost()


def test_a_bitmap_with_bits_after_its_end_is_refused():
    class Garbler:
        rank, size = 0, 2

        def all_reduce_(self, *parts):
            parts[-1][0].fill_(255)

    with pytest.raises(WireError, match="a bitmap of 9 rows with bits that are set"):
        UnionReduce().sum_rows(Rows.of({0: [1.0]}, 9), Channel(Garbler()), RowMemory())
