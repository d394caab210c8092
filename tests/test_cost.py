"""The vocabulary of the cards, worked out by hand."""

import pytest

from thinwire.cost import Cost, Link, direct_all_gather, ring_all_reduce


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
    ("nbytes", "ranks", "cost"),
    [(48, 1, Cost()), (48, 2, Cost(1, 48)), (48, 5, Cost(4, 192)), (0, 3, Cost(2, 0))],
)
def test_a_gather_sends_everything_to_everyone(nbytes, ranks, cost):
    assert direct_all_gather(nbytes, ranks) == cost


def test_a_link_takes_its_time():
    slow = Link(latency=0.5, bandwidth=100.0)
    assert slow.transfer(25) == 0.25
    assert slow.seconds(Cost(rounds=3, nbytes=50)) == 2.0
    assert Link(latency=0.5).seconds(Cost(rounds=2, nbytes=10**9)) == 1.0
    assert Link().seconds(Cost(rounds=9, nbytes=10**12)) == 0.0
