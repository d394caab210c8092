"""gs-SGD: a worked example, and properties of every sketch."""

from dataclasses import replace

import pytest
import torch

from tests.collectives.reductions import reduce
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import Grade, GsSGD
from thinwire.collectives.heavymix import heavy_and_random
from thinwire.collectives.tree import tree_sum_
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError
from thinwire.feedback import Momentum
from thinwire.groups import simulate
from thinwire.kernels import Hashes
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector

RANKS = (1, 2, 3, 4, 5, 7, 8)

V = torch.tensor(
    [[9, 0.5, -1, 0, 0.25, 0, -4, 1], [1, -0.5, 0, 2, 0.25, -6, -3, 0]],
)
HASHES = Hashes(rows=3, columns=4, seed=1232)
EXAMPLE = GsSGD(0.25, rows=3, columns=4, candidates=2, sum="tree", block=1)


def worked(collective):
    """The worked example's total, what stays, and the rooms afterwards."""

    def body(group):
        x, room = Accumulator.of(V[group.rank]), torch.full((8,), float("nan"))
        state = collective.init(Layout.flat(8))
        channel = Channel(group, seed=1232)
        total = collective.all_reduce_(x, channel, state, lambda: room)
        return total.to_dict(), x.whole().tolist(), room.tolist()

    return simulate(2, body)


def test_the_tables_of_the_worked_example():
    first, second = (kernels.encode_sketch(v, HASHES) for v in V)
    assert first.tolist() == [
        [0, 5, 0.75, 0],
        [9, -3, -0.75, 0.5],
        [0, 1.75, -5, 1],
    ]
    assert second.tolist() == [[0, -2, -0.25, 4], [1, -3, -5.75, 1.5], [0, -0.25, 0, 6]]
    table, estimates = first + second, torch.empty(8)
    assert table.tolist() == [[0, 3, 0.5, 4], [10, -6, -6.5, 2], [0, 1.5, -5, 7]]
    kernels.estimate_sketch_(estimates, table, HASHES)
    assert estimates.tolist() == [5, 1.5, 0, 2, 0.5, -6.5, 3, 1.5]
    assert kernels.sketch_energy(table).tolist() == [25.25, 182.25, 76.25]


@pytest.mark.parametrize("how", ["tree", "allreduce", "auto"])
def test_the_worked_example(how):
    for rank, (total, after, room) in enumerate(worked(replace(EXAMPLE, sum=how))):
        assert total == {0: 10, 6: -7}
        assert (
            after
            == [
                [0, 0.5, -1, 0, 0.25, 0, 0, 1],
                [0, -0.5, 0, 2, 0.25, -6, 0, 0],
            ][rank]
        )
        assert not any(room)


def test_one_round_delivers_what_the_sketch_says():
    for rank, (total, after, room) in enumerate(worked(replace(EXAMPLE, rounds=1))):
        assert total == {0: 5, 5: -6.5}
        assert after[0] == after[5] == 0
        assert after[6] == V[rank, 6]
        assert not any(room)


def test_heavymix_keeps_what_stands_out_and_draws_the_rest():
    totals = {
        tuple(total) for total, _, _ in worked(replace(EXAMPLE, recover="heavymix"))
    }
    (chosen,) = totals
    assert len(chosen) == 2
    assert 5 in chosen
    # Another key draws another filler, and in the long run each.
    table = kernels.encode_sketch(V.sum(0), HASHES)
    found = SparseVector.of({0: 5.0, 5: -6.5}, size=8)
    drawn = [
        heavy_and_random(found, table, replace(HASHES, epoch=epoch)).tolist()
        for epoch in range(80)
    ]
    assert all(5 in pair and len(set(pair)) == 2 for pair in drawn)
    assert {index for pair in drawn for index in pair} == set(range(8))


def test_heavymix_finds_all_that_is_heavy():
    # Every x with v^2 >= 2/k |v|^2 where estimates are as good as they should be.
    torch.manual_seed(0)
    x, k = torch.randn(5000), 50
    x[::500] = 40.0
    heavy = (x.square() >= 2 / k * x.square().sum()).nonzero().view(-1).tolist()
    assert len(heavy) == 10
    mix = GsSGD(0.01, columns=2000, sum="tree", recover="heavymix")
    result = reduce(mix, [(x / 2).tolist()] * 2)
    assert len(result.total) == k
    assert set(heavy) <= set(result.total)
    assert len(set(result.total) - set(heavy)) == k - 10


def test_as_many_heavy_ones_as_the_budget_leave_nothing_to_draw():
    # More are not possible: the k-th part of the energy is in k elements at most.
    x = [0.0] * 1000
    x[3:7] = [1.0, -1.0, 1.0, 1.0]
    mix = GsSGD(0.004, columns=5000, recover="heavymix", sum="tree")
    assert reduce(mix, [x, x]).total == {3: 2, 4: -2, 5: 2, 6: 2}


@pytest.mark.parametrize("ranks", RANKS)
def test_the_tables_add_up_to_the_table_of_the_sum(ranks):
    parts = torch.randint(-99, 100, (ranks, 2000)).float()
    drawn = Hashes(5, 300, block=256, seed=ranks)

    def body(group):
        table = kernels.encode_sketch(parts[group.rank], drawn)
        tree_sum_(table, Channel(group))
        return table

    whole = kernels.encode_sketch(parts.sum(0), drawn)
    assert all(torch.equal(table, whole) for table in simulate(ranks, body))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("how", ["tree", "allreduce"])
def test_an_exact_sketch_gives_the_exact_top_k(ranks, how):
    # Enough columns that the few non-zero elements hardly ever share one.
    torch.manual_seed(ranks)
    xs = torch.zeros(ranks, 400)
    xs[:, ::10] = torch.randint(-99, 100, (ranks, 40)).float()
    for block in (1, 1024):
        wide = GsSGD(0.05, columns=100_000, candidates=1, sum=how, block=block)
        result = reduce(wide, xs.tolist())
        indices, values = kernels.select(xs.sum(0), 20)
        expected = dict(zip(indices.tolist(), values.tolist(), strict=True))
        assert result.total == expected
        xs_after = xs.clone()
        xs_after[:, indices.long()] = 0
        assert result.after == xs_after.tolist()


@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_delivered_is_exact_whatever_the_sketch_says(ranks):
    torch.manual_seed(ranks)
    xs = torch.randint(-99, 100, (ranks, 1000)).float()
    poor = GsSGD(0.02, rows=1, columns=7, candidates=2, sum="tree")
    result = reduce(poor, xs.tolist())
    assert len(result.total) == 20
    for index, value in result.total.items():
        assert value == xs[:, index].sum()
    assert torch.equal(
        torch.tensor(result.after).sum(0)
        + SparseVector.of(result.total, 1000).to_dense(),
        xs.sum(0),
    )


@pytest.mark.parametrize("ranks", RANKS)
def test_only_a_ranks_own_largest_elements_are_sketched(ranks):
    # Rank r has 2 large elements of its own and a small one that all ranks have.
    xs = torch.zeros(ranks, 1000)
    for rank in range(ranks):
        xs[rank, 10 * rank] = 64.0
        xs[rank, 10 * rank + 5] = 32.0
        xs[rank, 999] = 24.0
    wide = GsSGD(0.001, columns=1000, candidates=2 * ranks, sum="tree", sketched=2)
    own = reduce(wide, xs.tolist())
    assert own.total == {0: 64.0}
    assert sum(map(sum, own.after)) == xs.sum() - 64
    all_of_it = reduce(replace(wide, sketched=None), xs.tolist())
    largest = {0: 64.0} if 24 * ranks < 64 else {999: 24.0 * ranks}
    assert all_of_it.total == largest
    # What a rank did not sketch is delivered as well, where others found the element.
    xs[0, 999] = 1024.0
    found = reduce(wide, xs.tolist())
    assert found.total == {999: 1024.0 + 24 * (ranks - 1)}
    assert [after[999] for after in found.after] == [0] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("rounds", [1, 2])
def test_where_a_table_costs_no_less_the_largest_of_all_are_delivered(ranks, rounds):
    torch.manual_seed(ranks)
    xs = torch.randint(-99, 100, (ranks, 100)).float()
    result = reduce(GsSGD(0.1, sum="tree", rounds=rounds), xs.tolist())
    indices, values = kernels.select(xs.sum(0), 10)
    assert result.total == dict(zip(indices.tolist(), values.tolist(), strict=True))
    xs[:, indices.long()] = 0
    assert result.after == xs.tolist()


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_everything_kept_is_the_dense_sum(ranks):
    xs = torch.randint(-9, 10, (ranks, 50)).float()
    result = reduce(GsSGD(1.0, candidates=1), xs.tolist())
    assert list(result.total.values()) == xs.sum(0).tolist()
    assert result.after == [[0] * 50] * ranks


def test_hashes_change_with_the_step_and_the_seed():
    one = simulate(1, lambda group: group)[0]
    hashes = [
        GsSGD().hashes_for(10_000, Channel(one, step=step, seed=seed))
        for step, seed in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(set(hashes)) == 3
    assert all(h.columns == 400 and h.block == 400 for h in hashes)
    assert GsSGD(columns=7).hashes_for(10_000, Channel(one)).columns == 7


def test_momentum_is_masked_where_something_was_delivered():
    pipeline = Pipeline(GsSGD(0.01, columns=10_000), feedback=Momentum(0.5))

    def body(group):
        state = pipeline.init(Layout.flat(200))
        grad = torch.ones(200)
        grad[3] = grad[5] = 10.0
        mean = pipeline.reduce_([grad], group, state)
        pipeline.settle(mean, state)
        assert mean.to_dict() == {3: 10.0, 5: 10.0}
        assert torch.count_nonzero(grad) == 2
        return [v.whole().tolist() for v in state.memory.saved.values()]

    for vectors in simulate(2, body):
        for vector in vectors:
            assert [i for i, value in enumerate(vector) if value == 0] == [3, 5]


@pytest.mark.parametrize(
    ("options", "ranks", "cost"),
    [
        ({"sum": "tree"}, 1, Cost()),
        ({"sum": "allreduce"}, 1, Cost()),
        ({"sum": "tree"}, 2, Cost(4, 4 * 240)),
        ({"sum": "tree"}, 5, Cost(12, 3 * 4 * 240)),
        ({"sum": "tree"}, 8, Cost(12, 3 * 4 * 240)),
        ({"sum": "tree", "sketched": None}, 8, Cost(12, 3 * 4 * 240)),
        ({"sum": "allreduce"}, 4, Cost(12, 6 * 240)),
        ({"sum": "tree", "rounds": 1}, 8, Cost(6, 3 * 4 * 120)),
        ({"sum": "tree", "recover": "heavymix"}, 8, Cost(12, 3 * 4 * 130)),
        ({"sum": "tree", "columns": 11, "rows": 5}, 2, Cost(4, 4 * 175)),
        # No more than the sum of all: it is taken instead, unless columns are given.
        ({"sum": "tree", "rows": 7, "candidates": 71}, 2, Cost(4, 4 * 990)),
        ({"sum": "tree", "rows": 7, "candidates": 72}, 2, Cost(2, 4 * 1000)),
        ({"sum": "tree", "rows": 7, "columns": 200}, 2, Cost(4, 4 * 1520)),
    ],
)
def test_the_card(options, ranks, cost):
    assert GsSGD(0.01, **options).cost(1000, ranks, None) == cost


def test_auto_is_a_tree_where_latency_rules():
    # At P = 16, 1 Gbit/s and 50 us a tree is faster below about 5,600 cells.
    assert GsSGD().sum_for(5500, 16) == "tree"
    assert GsSGD().sum_for(5700, 16) == "allreduce"
    assert GsSGD(link=Link(1e-3, 125e6)).sum_for(5700, 16) == "tree"
    assert GsSGD(sum="allreduce").sum_for(1, 16) == "allreduce"
    # Each buffer for itself: here the table by the library, the candidates by a tree.
    few = GsSGD(0.01, candidates=4)
    assert few.cost(100_000, 16, None) == Cost(30 + 8, 4 * 22_500 + 4 * 16_000)


def test_automatic_columns_are_no_more_than_a_hash_can_tell_apart():
    one = next(iter(simulate(1, lambda group: group)))
    hashes = GsSGD(0.5).hashes_for(2**33, Channel(one))
    assert hashes.columns == 2**31 - 1


@pytest.mark.parametrize("how", ["median", "mean"])
def test_what_is_made_of_the_cells_is_chosen(how):
    estimates = torch.empty(8)
    table = sum(kernels.encode_sketch(v, HASHES) for v in V)
    kernels.estimate_sketch_(estimates, table, HASHES, mean=how == "mean")
    indices, values = kernels.select(estimates, 2)
    said = dict(zip(indices.tolist(), values.tolist(), strict=True))
    for total, _, _ in worked(replace(EXAMPLE, rounds=1, estimate=how)):
        assert total == said


def test_its_grades():
    assert GsSGD(sum="tree").grade is Grade.EXACT
    assert GsSGD(sum="allreduce").grade is GsSGD().grade is Grade.ROUNDING
    assert GsSGD(sum="tree", rounds=1).grade is Grade.NONE
    assert not GsSGD().coded
    assert GsSGD(0.5).with_density(0.1) == GsSGD(0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"density": 0}, "density is 0"),
        ({"rows": 4}, "rows is 4: choose 1, 3, 5 or 7"),
        ({"rows": 9}, "rows is 9"),
        ({"columns": 0}, "columns is 0: give the cells"),
        ({"columns": 2**31}, "columns is 2147483648"),
        ({"columns": 100.0}, "columns is 100.0: give the cells"),
        ({"columns": "auto"}, "columns is 'auto': give .* or None"),
        ({"rows": 5.0}, "rows is 5.0: choose"),
        ({"rows": True}, "rows is True: choose"),
        ({"candidates": 1.5}, "candidates is 1.5: at least 1"),
        ({"block": 16.5}, "block is 16.5: give the elements"),
        ({"estimate": "mode"}, "estimate is 'mode': choose 'median' or 'mean'"),
        ({"candidates": 0}, "candidates is 0: at least 1"),
        ({"sketched": 0}, "sketched is 0: at least 1 .* or None"),
        ({"sketched": 2.0}, "sketched is 2.0: at least 1"),
        ({"rounds": 3}, "rounds is 3: choose 1 or 2"),
        ({"sum": "ring"}, "sum is 'ring': choose 'auto' or 'tree' or 'allreduce'"),
        ({"recover": "all"}, "recover is 'all': choose 'largest' or 'heavymix'"),
        ({"recover": "heavymix", "rounds": 1}, "use rounds=2"),
        ({"block": 0}, "block is 0: give the elements"),
    ],
)
def test_what_cannot_be_is_explained(options, said):
    with pytest.raises(ConfigError, match=said):
        GsSGD(**options)
