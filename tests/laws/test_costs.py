"""What the group counts is what the card says."""

import pytest
from cases import (
    ALL_CASES,
    AT_MOST,
    CODECS,
    COLLECTIVES,
    EVERY_CODEC,
    RANKS,
    Case,
    count,
    usual_ranks,
)

from thinwire.catalog import DEFAULT_CODEC
from thinwire.collectives import Union, Warmup
from thinwire.cost import Cost, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.groups import simulate


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in ALL_CASES
        if case.collective not in AT_MOST
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
    codec = CODECS.get(case.codec) if collective.coded else None
    for ranks in usual_ranks(case, "integers"):
        counted = simulate(ranks, lambda g: count(g, case))
        busiest = Cost(max(r for r, _ in counted), max(n for _, n in counted))
        assert busiest == collective.cost(case.size, ranks, codec), ranks


@pytest.mark.parametrize(
    "case", [case for case in ALL_CASES if case.collective in AT_MOST], ids=str
)
def test_counted_is_at_most_the_card_where_the_data_decides(case):
    collective = COLLECTIVES[case.collective]
    for ranks in usual_ranks(case, "integers"):
        (before,), (after,) = (
            {Cost(*pair) for pair in simulate(ranks, lambda g: count(g, case, steps))}
            for steps in (1, 2)
        )
        card = collective.cost(case.size, ranks, None)
        assert after.rounds - before.rounds <= card.rounds
        assert after.nbytes - before.nbytes <= card.nbytes
        # The first step has no numbers to go by: it asks, or is a union.
        union = Union(collective.density, collective.granularity, collective.width)
        first = union.cost(case.size, ranks, None)
        asked = ring_all_reduce(16, ranks)
        assert before.rounds <= max(first.rounds, card.rounds) + asked.rounds
        assert before.nbytes <= max(first.nbytes, card.nbytes) + 2 * asked.nbytes


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
