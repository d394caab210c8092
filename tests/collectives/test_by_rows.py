"""The rows that are offered: which, how long, and none of zeros."""

import pytest
import torch

from tests.collectives.reductions import reduce
from tests.collectives.row_sums import RANKS, dense_sum, some_rows, sums
from thinwire.accumulator import Accumulator
from thinwire.collectives import S2, GatherRows, MinBytes, UnionReduce
from thinwire.collectives.by_rows import ResidualRows
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.rows import Rows


@pytest.mark.parametrize(
    ("shapes", "width"),
    [
        (((10, 64), (64,)), 64),
        (((10, 64), (48,)), 16),
        (((3, 5), (7,)), 1),
        (((4, 6), ()), 1),
        (((0, 6), (2, 9)), 3),
        (((5, 0), (0,)), 1),
    ],
)
def test_no_row_crosses_from_one_piece_into_another(shapes, width):
    names = tuple(map(str, range(len(shapes))))
    state = UnionReduce(granularity="row").init(Layout(names, shapes))
    assert state.width == width


def test_a_row_s_length_is_known_from_the_layout_alone():
    with pytest.raises(ConfigError, match="depends on the model's layout"):
        UnionReduce(granularity="row").cost(1000, 4, None)


@pytest.mark.parametrize("width", [1, 3, 4, 50])
def test_the_rows_with_the_largest_values_are_offered(width):
    torch.manual_seed(width)
    x = torch.randn(101)
    done = reduce(UnionReduce(0.2, "block", width=width), [x.tolist()])
    offered = sorted({index // width for index in done.total})
    count = -(-101 // width)
    peaks = [x[r * width : (r + 1) * width].abs().max().item() for r in range(count)]
    best = sorted(range(count), key=lambda r: -peaks[r])[: max(1, int(count * 0.2))]
    assert offered == sorted(best)


@pytest.mark.parametrize("density", [0.5, 1.0])
def test_rows_of_zeros_are_never_offered(density):
    x = torch.zeros(100)
    x[[13, 14, 77]] = torch.tensor([1.0, -0.0, -3.0])
    for granularity, rows in (("element", [13, 77]), ("block", [1, 7])):
        union = UnionReduce(density, granularity, width=10)
        width = union.init(Layout.flat(100)).width
        done = reduce(union, [x.tolist()])
        assert sorted({index // width for index in done.total}) == rows


def test_a_short_last_row():
    x = Accumulator.of(torch.arange(1.0, 9.0))
    matrix = ResidualRows(x, torch.tensor([0, 2]), 3)
    assert matrix.count == 3
    values = matrix.at(matrix.ids)
    assert values.tolist() == [[1, 2, 3], [7, 8, 0]]
    matrix.remove(matrix.ids, values)
    assert x.whole().tolist() == [0, 0, 0, 4, 5, 6, 0, 0]
    vector = matrix.vector(Rows(matrix.ids, values, 3))
    assert vector.to_dict() == {0: 1, 1: 2, 2: 3, 6: 7, 7: 8}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"granularity": "column"}, "choose 'element' or 'block' or 'row'"),
        ({"width": 0}, "width is 0"),
        ({"width": 2.5, "granularity": "block"}, "width is 2.5: give the elements"),
        ({"width": True}, "width is True: give the elements"),
        ({"density": 0.0}, "density is 0"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    for kind in (UnionReduce, S2, MinBytes):
        with pytest.raises(ConfigError, match=said):
            kind(**options)


ADDERS = [UnionReduce(), S2(), S2(columns=4), MinBytes(), GatherRows()]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("adder", ADDERS, ids=str)
def test_naturally_sparse_rows_add_up(adder, ranks):
    for step, (total, _) in enumerate(sums(adder, ranks, some_rows)):
        listed, values = dense_sum(ranks, step, some_rows)
        assert total.ids.tolist() == listed
        assert torch.equal(total.values.double(), values)
        assert (total.width, total.count) == (3, 200)


@pytest.mark.parametrize("adder", ADDERS, ids=str)
def test_rows_of_reals_add_up_but_for_rounding(adder):
    def rows(rank, step):
        return some_rows(rank, step, whole=False)

    for step, (total, _) in enumerate(sums(adder, 4, rows)):
        _, values = dense_sum(4, step, rows)
        assert torch.allclose(total.values.double(), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("adder", ADDERS, ids=str)
def test_nobody_has_a_row(adder):
    def rows(rank, step):
        return some_rows(rank, step, nnz=0 if step < 2 else 5)

    seen = sums(adder, 3, rows, steps=4)
    assert [total.nnz for total, _ in seen[:2]] == [0, 0]
    assert all(total.nnz > 0 for total, _ in seen[2:])


@pytest.mark.parametrize("adder", ADDERS, ids=str)
def test_what_is_not_finite_is_not_finite_for_everyone(adder):
    def rows(rank, step):
        mine = some_rows(rank, 0)
        if rank == 1 and step == 1:
            mine.values[0, 0] = float("nan")
        return mine

    fine, bad, fine_again = sums(adder, 4, rows)
    assert bad[0].values.isnan().any()
    assert torch.equal(fine[0].values, fine_again[0].values)
