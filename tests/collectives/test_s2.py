"""S2: exact with a large or a small table, or an estimate."""

from dataclasses import dataclass

import pytest
import torch

from tests.collectives.reductions import reduce
from tests.collectives.row_sums import RANKS
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import S2, Grade, UnionReduce
from thinwire.collectives import union_reduce as union
from thinwire.collectives.s2 import CELLS_TO_PEEL
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout

SIZE = 3000


@dataclass(frozen=True)
class Seen:
    before: torch.Tensor
    total: torch.Tensor
    listed: int
    after: torch.Tensor
    cost: Cost
    saved: dict[str, int]


def grads(rank, step, size=SIZE, factor=1.0):
    generator = torch.Generator().manual_seed(31 * step + rank)
    return torch.randn(size, generator=generator).exp() * factor


def steps(collective, ranks, *, count=4, grad=grads, layout=None):
    """Some steps with error feedback; what rank 0 and the sum over ranks saw."""

    def body(group):
        x = Accumulator(layout.size if layout else SIZE)
        state = collective.init(layout or Layout.flat(SIZE))
        seen = []
        for step in range(count):
            counted = Counted(group)
            x.accumulate_(grad(group.rank, step).clone())
            before = x.whole().double()
            channel = Channel(counted, step=step, seed=5)
            total = collective.all_reduce_(x, channel, state, lambda: None)
            seen.append(
                Seen(
                    before,
                    total.to_dense(),
                    total.nnz,
                    x.whole().double(),
                    counted.traffic.cost,
                    state.to_dict(),
                )
            )
        return seen

    everyone = list(zip(*simulate(ranks, body), strict=True))
    for at_once in everyone:
        bits = [s.total.view(torch.int32) for s in at_once]
        assert all(torch.equal(b, bits[0]) for b in bits)
        assert all(s.saved == at_once[0].saved for s in at_once)
    return everyone


def conserved(seen):
    before = sum(s.before for s in seen)
    after = sum(s.after for s in seen)
    gap = (before - after - seen[0].total.double()).abs()
    # The sum of multiples is rounded once, to float32.
    return bool((gap <= seen[0].total.abs() * 2**-24).all())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("granularity", ["element", "block"])
def test_a_step_is_one_flight_after_the_first(ranks, granularity):
    s2 = S2(0.02, granularity, width=5)
    width = 1 if granularity == "element" else 5
    everyone = steps(s2, ranks)
    assert all(map(conserved, everyone))
    if ranks == 1:
        assert all(seen[0].cost == Cost() for seen in everyone)
        return
    first, *later = (seen[0] for seen in everyone)
    rows = first.listed // width
    assert first.cost == union.card(SIZE, width, ranks, rows=rows, rider=16)
    assert first.saved["union"] == rows
    assert first.saved["offered"] == int(SIZE // width * 0.02)
    remembered = first.saved["union"]
    flights = []
    for seen in later:
        columns = s2.columns_for(SIZE // width, remembered)
        card = s2.card(SIZE, width, ranks, columns=columns, stuck=0)
        flights.append(seen.cost == card)
        remembered = seen.saved["union"]
    assert sum(flights) >= 2


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("columns", [1, 2, 20, 500])
def test_rows_that_are_stuck_are_added_up_too(ranks, columns):
    s2 = S2(0.02, columns=columns)
    everyone = steps(s2, ranks)
    assert all(map(conserved, everyone))
    support = steps(UnionReduce(0.02), ranks)
    assert torch.equal(everyone[0][0].total != 0, support[0][0].total != 0)
    rounds = {seen[0].cost.rounds for seen in everyone[1:]}
    assert rounds == {(4 if columns < 500 else 2) * (ranks - 1)}


def test_what_stays_is_finer_than_what_is_sent():
    for seen in steps(S2(0.02), 4):
        delivered = seen[0].total != 0
        peak = max(s.before.abs().max() for s in seen)
        for rank in seen:
            sent = delivered & (rank.before != rank.after)
            assert rank.after[sent].abs().max() <= peak * 2**-25


@pytest.mark.parametrize("growth", [0.01, 3.0, 5.0, 1e9, 1e30])
def test_magnitudes_may_change_between_steps(growth):
    def grad(rank, step):
        return grads(rank, step, factor=growth if step == 2 else 1.0)

    everyone = steps(S2(0.02, columns=200), 4, grad=grad)
    assert all(map(conserved, everyone))
    # Beyond two bits the table is given up, and the union is added up after it.
    assert everyone[2][0].cost.rounds == (6 if growth < 4 else 12)
    assert torch.count_nonzero(everyone[2][0].total) > 100


def test_with_nothing_to_go_by_it_asks():
    asked, *later = (seen[0].cost.rounds for seen in steps(S2(0.02, columns=200), 4))
    assert asked == 6 + 2
    assert later == [6, 6, 6]


def test_zeros_leave_nothing_to_go_by():
    def grad(rank, step):
        return torch.zeros(SIZE) if step < 2 else grads(rank, step)

    everyone = steps(S2(0.02), 4, grad=grad)
    assert everyone[1][0].listed == 0
    assert "peak" not in everyone[1][0].saved
    assert all(map(conserved, everyone))
    assert torch.count_nonzero(everyone[3][0].total) > 60


@pytest.mark.parametrize("density", [0.3, 1.0])
def test_no_table_where_it_would_be_as_large_as_the_vector(density):
    s2 = S2(density)
    for seen in steps(s2, 5, count=3):
        most = UnionReduce(1.0).cost(SIZE, 5, None).nbytes + 3 * 16
        assert seen[0].cost.nbytes <= most
        assert conserved(seen)


def test_a_table_follows_the_union():
    s2 = S2()
    columns = [s2.columns_for(10**6, rows) for rows in (0, 1, 10, 100, 1000, 10**5)]
    assert columns == [2, 4, 10, 56, 470, 43691]
    assert s2.columns_for(10**6, None) == 0
    assert s2.columns_for(10**6, 800_000) == 0
    sizes = {s2.columns_for(10**6, rows) for rows in range(10_000, 20_000)}
    assert len(sizes) <= 17


def test_what_is_too_fine_to_send_is_not_offered():
    """Else all that was ever in a union would be in every one after it."""

    def grad(rank, step):
        return grads(rank, step) * (torch.arange(SIZE) % 10 == step)

    everyone = steps(S2(1.0), 2, grad=grad)
    assert [seen[0].listed for seen in everyone] == [300] * 4
    assert torch.count_nonzero(everyone[3][0].after) > 0


@pytest.mark.parametrize("rows", CELLS_TO_PEEL)
def test_that_many_cells_suffice(rows):
    columns = S2(rows=rows).columns_for(10**6, 20_000)
    # As much as the union may grow in a step, to be read at once.
    grown = int(20_000 * 1.03)
    ids, values = torch.arange(grown), torch.ones(grown, 1, dtype=torch.int32)
    for seed in range(3):
        keys = kernels.hash_keys(seed, 0, rows)
        cells = kernels.sketch_rows(ids, values, keys, columns)
        assert len(kernels.peel_rows_(cells, ids, keys)[1]) == 0


def test_the_expected_union_falls_slowly():
    def grad(rank, step):
        every = 1 if step < 2 else 300
        return (1 + grads(0, step)).ceil() * (torch.arange(SIZE) % every == 0)

    saved = [s[0].saved["union"] for s in steps(S2(1.0), 2, count=5, grad=grad)]
    assert saved == [3000, 3000, 2627, 2300, 2014]


def test_a_resumed_run_gives_the_same_bits():
    s2 = S2(0.02)

    def body(group, *, stop):
        x, state = Accumulator(SIZE), s2.init(Layout.flat(SIZE))
        for step in range(6):
            if step == stop:
                saved, state = state.to_dict(), s2.init(Layout.flat(SIZE))
                state.load_dict(saved)
            x.accumulate_(grads(group.rank, step))
            channel = Channel(group, step=step)
            total = s2.all_reduce_(x, channel, state, lambda: None)
        return total.to_dict(), x.whole().tolist()

    whole = simulate(3, lambda g: body(g, stop=None))
    assert simulate(3, lambda g: body(g, stop=3)) == whole


def test_rows_of_a_model():
    layout = Layout(("embedding", "bias"), ((300, 8), (24,)))

    def grad(rank, step):
        return grads(rank, step, size=2424)

    everyone = steps(S2(0.05, "row"), 4, grad=grad, layout=layout)
    assert all(map(conserved, everyone))
    assert all(seen[0].listed % 8 == 0 for seen in everyone)


@pytest.mark.parametrize("decode", ["median", "mean"])
def test_an_estimate_is_exact_where_nothing_collides(decode):
    xs = [[0.0] * 100 for _ in range(3)]
    xs[0][7], xs[1][7], xs[2][60], xs[2][99] = 2.0, 3.0, -1.5, 0.25
    done = reduce(S2(1.0, rows=1, columns=10**4, decode=decode), xs)
    assert done.total == {7: 5.0, 60: -1.5, 99: 0.25}
    assert not any(map(any, done.after))
    alone = reduce(S2(1.0, rows=3, columns=1, decode=decode), [[0.0, 4.0], [0.0, 1.0]])
    assert alone.total == {1: 5.0}


def test_an_estimate_by_one_row_is_linear():
    s2 = S2(1.0, rows=1, columns=20, decode="mean")
    parts = [torch.randint(1, 9, (40,)).tolist() for _ in range(2)]
    both = reduce(s2, parts)
    alone = [reduce(s2, [part, [0.0] * 40]) for part in parts]
    for i, value in both.total.items():
        assert value == alone[0].total[i] + alone[1].total[i]


def test_an_estimate_takes_cells_by_the_last_union():
    s2 = S2(0.02, decode="median")
    assert s2.grade is Grade.NONE
    first, second, *_ = steps(s2, 4)
    columns = s2.columns_for(SIZE, first[0].listed)
    assert columns * 3 >= 4 * first[0].listed
    assert second[0].cost == s2.card(SIZE, 1, 4, columns=columns, stuck=0)
    # The first step has no table, and estimates nothing.
    for seen, exact in ((first, True), (second, False)):
        gone = sum(s.before - s.after for s in seen).float()
        assert torch.allclose(seen[0].total, gone) is exact


def test_its_card():
    s2 = S2(0.01)
    columns = s2.columns_for(10**6, 80_000)
    bitmap, note = 125_000 * 7 // 4, 3 * 16
    assert s2.cost(10**6, 8, None) == Cost(14, bitmap + note + 12 * columns * 7 // 4)
    assert s2.cost(1000, 1, None) == s2.cost(0, 8, None) == Cost()
    saturated = UnionReduce(0.5).cost(1000, 8, None)
    assert S2(0.5).cost(1000, 8, None) == saturated + Cost(0, note)
    assert S2(0.5, rows=2, columns=9).cost(1000, 8, None).rounds == 28
    small = S2(0.5, columns=1)
    assert small.cost(1000, 8, None) == saturated + Cost(0, note + 21)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode": "guess"}, "choose 'peel' or 'median' or 'mean'"),
        ({"rows": 0}, "rows is 0"),
        ({"rows": 65, "columns": 5}, "1 to 64"),
        ({"rows": 2}, r"give the columns too, or choose one of \[3, 4, 5, 6, 7\]"),
        ({"rows": 4, "decode": "median"}, "odd number"),
        ({"columns": 0}, "columns is 0"),
        ({"columns": 2**31}, "columns is"),
        ({"columns": 2.5}, "columns is 2.5: give the cells"),
        ({"columns": 100.0}, "columns is 100.0: give the cells"),
        ({"columns": "many"}, "columns is 'many': give the cells"),
        ({"rows": 3.0}, "rows is 3.0: a table has"),
        ({"rows": True, "columns": 9}, "rows is True: a table has"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        S2(**options)
