"""Cost and Link: worked examples."""

import pytest

from thinwire.codecs import Split
from thinwire.collectives import GTopK
from thinwire.collectives.tree import tree_sum_cost
from thinwire.cost import Cost, Link, direct_all_gather, max_reduce, ring_all_reduce
from thinwire.errors import ConfigError


@pytest.mark.parametrize(
    "given",
    [(-1.0, 1e6), (0.0, 0.0), (float("nan"), 1.0), ("1", 1.0), (0.0, 1e9, 0.5)],
)
def test_a_link_that_cannot_be_is_refused(given):
    with pytest.raises(ConfigError, match="give seconds of latency"):
        Link(*given)


def test_costs_add_up():
    assert Cost(2, 100) + Cost(rounds=1, nbytes=8) == Cost(3, 108)
    assert Cost() + Cost(1, 2) == Cost(1, 2)


@pytest.mark.parametrize(
    ("nbytes", "ranks", "cost"),
    [
        (4000, 1, Cost(0, 0)),
        (4000, 2, Cost(2, 4000)),
        (4000, 4, Cost(6, 6000)),
        (1000, 3, Cost(4, 1334)),  # 1333 1/3
        (8, 7, Cost(12, 14)),  # 13 5/7
        (0, 8, Cost(14, 0)),
    ],
)
def test_a_ring_sends_all_but_one_chunk_twice(nbytes, ranks, cost):
    assert ring_all_reduce(nbytes, ranks) == cost


@pytest.mark.parametrize(
    ("ranks", "rounds"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)],
)
def test_a_maximum_reaches_twice_as_many_ranks_with_each_round(ranks, rounds):
    assert max_reduce(40, ranks) == Cost(rounds, 40 * rounds)


@pytest.mark.parametrize(
    ("nbytes", "ranks", "cost"),
    [(48, 1, Cost()), (48, 2, Cost(1, 48)), (48, 5, Cost(4, 192)), (0, 3, Cost(2, 0))],
)
def test_a_gather_sends_everything_to_everyone(nbytes, ranks, cost):
    assert direct_all_gather(nbytes, ranks) == cost


def test_what_a_rank_waits_for_takes_time_and_is_not_sent():
    slow = Link(latency=0.5, bandwidth=100.0)
    cost = Cost(rounds=4, nbytes=50, awaited=150)
    assert slow.seconds(cost) == 4.0
    assert cost == Cost(rounds=4, nbytes=50)
    assert (cost + cost).awaited == 300
    # A tree's root receives as much as it sends, and not at the same time.
    packet = Split().nbytes(1000, 10)
    assert GTopK(0.01, "tree").cost(1000, 8, Split()).awaited == 3 * packet
    assert GTopK(0.01).cost(1000, 8, Split()).awaited == 0
    assert GTopK(0.01).cost(1000, 9, Split()).awaited == packet
    assert tree_sum_cost(4000, 5).awaited == 12_000


def test_a_burst_spares_its_bytes_and_never_more_than_there_are():
    link = Link(latency=0.5, bandwidth=100.0, burst=50)
    assert link.seconds(Cost(1, 40)) == 0.5
    assert link.seconds(Cost(3, 250)) == 3.5  # once, if nothing is computed between
    assert link.seconds(Cost(3, 250), idle=0.5) == 3.0  # and 25 more, twice
    assert link.seconds(Cost(3, 250), idle=60.0) == 2.5  # but never above the bucket
    assert link.seconds(Cost()) == 0.0


def test_a_link_takes_its_time():
    slow = Link(latency=0.5, bandwidth=100.0)
    assert slow.transfer(25) == 0.25
    assert slow.seconds(Cost(rounds=3, nbytes=50)) == 2.0
    assert Link(latency=0.5).seconds(Cost(rounds=2, nbytes=10**9)) == 1.0
    assert Link().seconds(Cost(rounds=9, nbytes=10**12)) == 0.0
