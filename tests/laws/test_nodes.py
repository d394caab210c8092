"""The laws hold on nodes, whatever runs between them.

Nothing is lost, all agree, real processes give the bits of simulated ranks, what is
counted is what the card says, and a step that is not finite leaves no trace: for every
collective of `cases.py`.
"""

from functools import partial

import pytest
import torch

from tests.laws.cases import (
    BY_DATA,
    BY_REGION,
    CODECS,
    COLLECTIVES,
    integers,
    run_collective,
)
from tests.laws.test_conservation import agree, conserved
from tests.laws.test_guard import pipeline_with, same, spoil_at_once, spoil_late
from tests.laws.test_guard import run as run_pipeline
from tests.workers import pool
from thinwire.accumulator import Accumulator
from thinwire.catalog import DEFAULT_CODEC
from thinwire.channel import Channel
from thinwire.choosers import choose
from thinwire.choosers.on_nodes import on_nodes
from thinwire.collectives import Dense, Grade, Nodes
from thinwire.collectives.nodes import INSIDE
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.feedback import Momentum
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

# Ranks, and how many are on each node: one, some and all.
PLACES = [(3, 1), (3, 3), (4, 2), (6, 2), (6, 3), (8, 4), (8, 2)]
PROCESSES = [(4, 2), (6, 2), (6, 3)]
SIZES = (0, 1, 3, 1003)


def on(name, nodes):
    """A collective of the cases on nodes; `Dense` too, which choosers leave alone."""
    collective = COLLECTIVES[name]
    if isinstance(collective, Dense):
        return Nodes(collective, nodes)
    return on_nodes(collective, nodes)


def codec_of(name, codec="raw"):
    return CODECS[codec] if COLLECTIVES[name].coded else None


def serves(name, ranks, nodes):
    try:
        on(name, nodes).check(ranks)
    except ConfigError:
        return False
    return True


def each_on(places):
    return pytest.mark.parametrize(
        ("name", "ranks", "local"),
        [
            pytest.param(name, ranks, local, id=f"{name}-{ranks // local}x{local}")
            for name in COLLECTIVES
            for ranks, local in places
            if serves(name, ranks, local)
        ],
    )


def check(seen, name, *, whole_numbers, lossy=False):
    for steps in zip(*seen, strict=True):
        assert agree(steps)
        if COLLECTIVES[name].grade is not Grade.NONE:
            assert conserved(steps, whole_numbers=whole_numbers, lossy=lossy)


@each_on(PLACES)
def test_nothing_is_lost_and_all_agree(name, ranks, local):
    given = on(name, local), codec_of(name)
    for size, data in [*((each, "integers") for each in SIZES), (1003, "reals")]:
        reduce = partial(_reduce, given=(*given, size, data))
        check(simulate(ranks, reduce), name, whole_numbers=data == "integers")


def _reduce(group, given):
    return run_collective(group, *given)


@pytest.mark.parametrize("codec", [DEFAULT_CODEC, "unsized", "bloom-p2+qsgd"])
@pytest.mark.parametrize("name", ["topk-1%", "spardl-2", "gtopk-tree"])
def test_any_codec_serves_between_nodes(name, codec):
    given = on(name, 2), codec_of(name, codec), 1003, "reals"
    seen = simulate(4, lambda g: run_collective(g, *given))
    check(seen, name, whole_numbers=False, lossy=True)


@pytest.mark.parametrize("name", ["topk-30%", "spardl-3", "bf16", "cheapest"])
def test_nodes_need_not_have_consecutive_ranks(name):
    nodes = [[5, 2], [0, 3], [4, 1]]
    given = on(name, nodes), codec_of(name), 1003, "reals"
    seen = simulate(6, lambda g: run_collective(g, *given))
    check(seen, name, whole_numbers=False)


def test_a_rank_keeps_its_share_alone():
    given = on("topk-1%", 2), codec_of("topk-1%"), 1000, "reals"
    seen = simulate(4, lambda g: run_collective(g, *given))
    for rank, steps in enumerate(seen):
        halves = steps[-1].after.view(2, 500)
        assert halves[rank % 2].count_nonzero() > 400
        assert halves[1 - rank % 2].count_nonzero() == 0


def test_packets_do_not_pass_through_shared_memory():
    def sent_inside(group):
        counted, size = Counted(group), 1000
        collective = on("topk-1%", 2)
        x, memory = Accumulator.of(integers(group.rank, 0, size)), collective.init(None)
        collective.all_reduce_(x, Channel(counted, codec_of("topk-1%")), memory, None)
        return {
            near: part.traffic.sent
            for (name, _, near), part in counted.parts.items()
            if name == INSIDE
        }

    for sent in simulate(4, sent_inside):
        assert sent[True] == 4 * 500 + 8  # a dense share, and how long the list is
        assert 0 < sent[False] < 4 * 500


@pytest.mark.processes
@each_on(PROCESSES)
def test_processes_give_the_bits_of_the_simulation(name, ranks, local):
    # Sums inside nodes are added in the same order everywhere.
    data = "reals" if COLLECTIVES[name].grade is Grade.EXACT else "integers"
    given = on(name, local), codec_of(name), 5003, data
    simulated = simulate(ranks, lambda g: run_collective(g, *given))
    real = pool(ranks).run(run_collective, *given)
    for ours, theirs in zip(simulated, real, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            pairs = (one.total, other.total), (one.after, other.after)
            assert all(
                torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs
            )


def first_step(group, collective, codec, size):
    """What a rank counts, and how many entries of each share the total lists."""
    counted = Counted(group)
    x, memory = (
        Accumulator.of(integers(group.rank, 0, size)),
        collective.init(Layout.flat(size)),
    )
    channel = Channel(counted, codec)
    total = collective.all_reduce_(x, channel, memory, lambda: torch.empty(size))
    shares = len(collective.placement(group.size)[0])
    listed = [None] * shares
    if isinstance(total, SparseVector):
        share = total.indices.long() // (size // shares)
        listed = torch.bincount(share, minlength=shares).tolist()
    return counted.traffic.cost, counted.traffic_of("inside nodes").cost, listed


@each_on(PLACES)
def test_counted_equals_card(name, ranks, local):
    size, collective, codec = 1008, on(name, local), codec_of(name)
    collective = choose(
        collective, collective.init(Layout.flat(size)), size, 0
    ).collective
    if name in BY_DATA + BY_REGION or not isinstance(collective, Nodes):
        pytest.skip("what runs between nodes has no card, or choosers leave it flat")
    seen = simulate(ranks, lambda g: first_step(g, collective, codec, size))
    busiest = Cost(
        max(cost.rounds for cost, *_ in seen), max(cost.nbytes for cost, *_ in seen)
    )
    assert busiest == collective.card(size, ranks, codec, seen[0][2])
    assert busiest.nbytes <= collective.cost(size, ranks, codec).nbytes
    # Between nodes a rank sends what it would as one of fewer ranks, of its share.
    across = collective.between.cost(size // local, ranks // local, codec)
    between = [cost.nbytes - inside.nbytes for cost, inside, _ in seen]
    assert max(between) == across.nbytes


@pytest.mark.parametrize("spoil", [spoil_at_once, spoil_late])
@each_on([(4, 2), (6, 3)])
def test_a_spoilt_step_leaves_no_trace(name, ranks, local, spoil):
    feedback = [Momentum] if ranks == 6 else []
    pipeline = pipeline_with(on(name, local), "propagate", *feedback)
    calm = simulate(ranks, lambda group: run_pipeline(group, pipeline))
    struck = simulate(ranks, partial(run_pipeline, pipeline=pipeline, spoil=spoil))
    for one, other in zip(calm, struck, strict=True):
        assert all(map(same, one, other))
