"""MinBytes: it chooses and takes the way that the last step's counts favour."""

import pytest
import torch

from tests.collectives.row_sums import some_rows, sums
from tests.collectives.test_s2 import SIZE, grads
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import S2, Grade, MinBytes, RowMemory, gather_rows
from thinwire.cost import Cost, Link, ring_all_reduce
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

MILLION = 10**6


@pytest.mark.parametrize(
    ("union", "offered", "ranks", "way"),
    [
        # The published switch: 8 ranks, 0.01 % to 1 % offered, unions of 8 times.
        (800, 100, 8, "gather"),
        (8_000, 1_000, 8, "gather"),
        (77_000, 10_000, 8, "gather"),
        (337_000, 50_000, 8, "union"),
        (570_000, 100_000, 8, "union"),
        (980_000, 300_000, 8, "dense"),
        # All ranks offer the same.
        (10_000, 10_000, 64, "union"),
        (0, 0, 8, "gather"),
    ],
)
def test_the_switch(union, offered, ranks, way):
    memory = RowMemory(union=union, offered=offered)
    assert MinBytes().way(MILLION, 1, ranks, memory) == way


def test_the_first_step_is_a_union():
    assert MinBytes().way(MILLION, 1, 8, RowMemory()) == "union"


def test_latency_speaks_for_one_flight():
    memory = RowMemory(union=77_000, offered=60_000)
    fast, slow = Link(1e-3, 1e9), Link(1e-6, 1e7)
    assert MinBytes(link=fast).way(MILLION, 1, 8, memory) == "s2"
    assert MinBytes(link=slow).way(MILLION, 1, 8, memory) == "union"
    assert MinBytes().way(MILLION, 1, 8, memory) == "union"


def test_blocks_have_a_smaller_bitmap():
    memory = RowMemory(union=500, offered=200)
    assert MinBytes().way(64 * 2000, 64, 8, memory) == "union"
    assert MinBytes().way(64 * 2000, 64, 2, memory) == "gather"


def steps(collective, ranks, grad, count):
    def body(group):
        x, out = Accumulator(SIZE), torch.empty(SIZE)
        state = collective.init(Layout.flat(SIZE))
        seen = []
        for step in range(count):
            counted = Counted(group)
            x.accumulate_(grad(group.rank, step))
            before = x.whole().double()
            way = collective.way(SIZE, state.width, group.size, state)
            channel = Channel(counted, step=step)
            total = collective.all_reduce_(x, channel, state, lambda: out)
            sparse = isinstance(total, SparseVector)
            dense = total.to_dense() if sparse else total.clone()
            seen.append((way, counted.traffic.cost, before, dense, x.whole().double()))
        return seen

    return list(zip(*simulate(ranks, body), strict=True))


def lost(seen):
    before, after = (sum(s[i] for s in seen) for i in (2, 4))
    return (before - after - seen[0][3].double()).abs().max().item()


def test_it_follows_the_data():
    """From dense to sparse and back, with one `x`, and nothing lost on the way."""

    def grad(rank, step):
        every = 1 if step < 3 else (3 if step < 8 else 300)
        place = torch.arange(SIZE) % every == 0
        return torch.where(place, (grads(rank, step) * 8).round(), 0.0)

    everyone = steps(MinBytes(1.0), 4, grad, 12)
    ways = [seen[0][0] for seen in everyone]
    # After a dense step there is nothing to go by, so that others are tried.
    assert ways[:4] == ["union", "dense", "union", "dense"]
    assert "union" in ways[4:8]
    assert ways[-1] == "gather"
    for seen in everyone:
        assert len({s[0] for s in seen}) == 1
        assert lost(seen) == 0.0


def test_it_costs_what_the_way_costs():
    everyone = steps(MinBytes(0.001), 4, grads, 3)
    assert [seen[0][0] for seen in everyone] == ["union", "gather", "gather"]
    assert everyone[1][0][1] == gather_rows.card(1, 4, 3)
    assert MinBytes(0.001).cost(SIZE, 4, None) == gather_rows.card(1, 4, 3)
    assert MinBytes(1.0).cost(SIZE, 4, None) == ring_all_reduce(4 * SIZE, 4)
    assert MinBytes().cost(0, 4, None) == MinBytes().cost(9, 1, None) == Cost()


def test_naturally_sparse_rows_choose_too():
    def rows(rank, step):
        return some_rows(0 if step < 3 else rank, step, nnz=60 if step < 3 else 2)

    seen = sums(MinBytes(), 8, rows, steps=6)
    ways = [
        "union",
        *(MinBytes().way(600, 3, 8, remembered(saved)) for _, saved in seen),
    ]
    assert ways[:4] == ["union"] * 4
    assert ways[-1] == "gather"


def test_one_rank_alone():
    ((seen,),) = [steps(MinBytes(0.01), 1, grads, 1)]
    assert seen[0][1] == Cost()
    assert lost(seen) == 0.0
    assert MinBytes().grade is Grade.ROUNDING


def test_only_a_table_has_values_that_are_too_fine():
    linked = MinBytes(1.0, link=Link(1e-3, 1e9))
    many = RowMemory(union=77_000, offered=60_000, peak=0x4E800000)
    least = linked.least(MILLION, 8, many)
    assert least == S2().least(MILLION, 8, many) > 0
    few = RowMemory(union=8, offered=1, peak=0x4E800000)
    assert linked.way(MILLION, 1, 8, few) == "gather"
    assert linked.least(MILLION, 8, few) == 0.0


def remembered(saved):
    memory = RowMemory()
    memory.load_dict(saved)
    return memory


@pytest.mark.parametrize("saved", [{"union": 800}, {"offered": 800}, {"odd": 1}])
def test_a_dict_of_another_collective_is_ignored(saved):
    assert MinBytes().way(MILLION, 1, 8, remembered(saved)) == "union"
