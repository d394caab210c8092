"""The counted rounds and bytes of a collective equal its stated cost."""

import pytest
import torch

from tests.laws.cases import (
    ALL_CASES,
    BY_DATA,
    BY_REGION,
    CODECS,
    COLLECTIVES,
    EVERY_CODEC,
    FEW_RANKS,
    MIDDLE,
    RANKS,
    Case,
    count,
    run,
    usual_ranks,
)
from thinwire.accumulator import Accumulator
from thinwire.catalog import DEFAULT_CODEC
from thinwire.channel import Channel
from thinwire.choosers import Auto, AutoWarmup, Warmup
from thinwire.choosers.auto_warmup import OrDense
from thinwire.collectives import S2, MinBytes
from thinwire.collectives import union_reduce as union
from thinwire.collectives.regions import tell_cost
from thinwire.cost import Cost, direct_all_gather, max_reduce
from thinwire.errors import ConfigError
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in ALL_CASES
        if case.collective not in BY_DATA + BY_REGION
        if usual_ranks(case, "integers")
        if case.codec in (None, "raw", DEFAULT_CODEC)
        or (
            (case.size == 1000 and CODECS[case.codec].nbytes(1000, 10) is not None)
            and case.collective in EVERY_CODEC
        )
    ],
    ids=str,
)
def test_counted_equals_card(case):
    collective = COLLECTIVES[case.collective]
    collective = collective.at(0) if isinstance(collective, Warmup) else collective
    if isinstance(collective, AutoWarmup):
        collective = OrDense(collective.at(0))
    told = isinstance(collective, Auto)  # how long the first step took
    collective = collective.ways[-1] if told else collective
    codec = CODECS.get(case.codec) if collective.coded else None
    for ranks in usual_ranks(case, "integers"):
        counted = simulate(ranks, lambda g: count(g, case))
        busiest = Cost(max(r for r, _ in counted), max(n for _, n in counted))
        note = max_reduce(8, ranks) if told else Cost()
        assert busiest == collective.cost(case.size, ranks, codec) + note, ranks


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in ALL_CASES
        if case.collective in BY_DATA and case.size in (0, MIDDLE)
    ],
    ids=str,
)
def test_counted_follows_from_the_union_where_the_data_decides(case):
    """The first step of those that reduce rows: nothing to go by but the union."""
    collective = COLLECTIVES[case.collective]
    width = 1 if collective.granularity == "element" else collective.width

    def body(group):
        counted = Counted(group)
        (step,) = run(counted, case, "integers", steps=1)
        return -(-step.listed // width), counted.traffic.cost

    def card(ranks, rows):
        rider = 16 if isinstance(collective, MinBytes) else 0
        if not isinstance(collective, S2):
            return union.card(case.size, width, ranks, rows=rows, rider=rider)
        columns = collective.columns_for(case.size, None)
        stuck = rows if columns == 0 or collective.decode == "peel" else 0
        asked = max_reduce(16, ranks) if columns and stuck else Cost()
        given = {"columns": columns, "stuck": stuck}
        return collective.card(case.size, width, ranks, **given) + asked

    for ranks in FEW_RANKS:
        ((rows, counted),) = set(simulate(ranks, body))
        if case.collective == "s2-stuck":
            assert counted.nbytes <= card(ranks, rows).nbytes
        else:
            assert counted == card(ranks, rows)


@pytest.mark.parametrize("codec", ["raw", DEFAULT_CODEC])
@pytest.mark.parametrize("name", ["topk-dsa", "topk-dsa-100%", "ok-topk"])
def test_counted_equals_card_where_regions_have_equal_shares(name, codec):
    """All ranks select the same for `ok-topk`, and all another for `topk-dsa`."""
    collective = COLLECTIVES[name]

    def body(group):
        size = 1000 * group.size
        alike = torch.arange(size) % 20 == (0 if name == "ok-topk" else group.rank)
        counted, seen = Counted(group), []
        x, memory = Accumulator(size), collective.init(Layout.flat(size))
        for step in range(2):
            x.accumulate_(alike.float())
            before = counted.traffic.cost
            channel = Channel(counted, CODECS[codec], step=step)
            collective.all_reduce_(x, channel, memory, lambda: torch.empty(size))
            after = counted.traffic.cost
            seen.append((after.rounds - before.rounds, after.nbytes - before.nbytes))
        return seen

    for ranks in FEW_RANKS:
        (first, second), *others = simulate(ranks, body)
        assert others == [[first, second]] * (ranks - 1)
        card = collective.cost(1000 * ranks, ranks, CODECS[codec])
        assert Cost(*second) == card, ranks
        if name == "ok-topk":  # boundaries; the magnitudes of 50 entries
            sampled = direct_all_gather(4 * 51, ranks) + tell_cost(1, ranks)
            card += tell_cost(ranks - 1, ranks) + sampled
        assert Cost(*first) == card, ranks


def test_a_length_travels_ahead_of_packets_of_unknown_length():
    for ranks in RANKS:
        known = simulate(ranks, lambda g: count(g, Case("topk-1%", "raw", 1000)))
        told = simulate(ranks, lambda g: count(g, Case("topk-1%", "unsized", 1000)))
        for (rounds, sent), (more_rounds, more_sent) in zip(known, told, strict=True):
            assert more_rounds == rounds + ranks - 1
            assert more_sent == sent + 8 * (ranks - 1)


def test_a_card_refuses_to_guess():
    with pytest.raises(ConfigError, match="depend on the data"):
        COLLECTIVES["topk-1%"].cost(1000, 4, CODECS["unsized"])
