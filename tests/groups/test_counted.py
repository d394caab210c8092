import pytest
import torch

from tests.groups.group_checks import CHECKS, body_of
from thinwire.cost import Cost, Link, direct_all_gather, max_reduce, ring_all_reduce
from thinwire.groups import Counted, Op, Traffic, simulate

SIZES = (1, 2, 3, 4, 7)


def counted(size, body, link=None):
    """Every rank's traffic."""

    def run(group):
        counting = Counted(group)
        body(counting)
        return counting.traffic

    return simulate(size, run, link=link or Link())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_group(check):
    results = simulate(4, lambda group: check(Counted(group)))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("size", SIZES)
def test_ring_of_known_lengths(size):
    def ring(group):
        dst, src = (group.rank + 1) % size, (group.rank - 1) % size
        group.exchange(body_of(0, 30), dst=dst, src=src, nbytes=30)

    expected = Traffic(1, 30, 30) if size > 1 else Traffic()
    assert counted(size, ring) == [expected] * size


@pytest.mark.parametrize("size", SIZES[1:])
def test_ring_of_unknown_lengths(size):
    def ring(group):
        dst, src = (group.rank + 1) % size, (group.rank - 1) % size
        group.exchange(body_of(0, group.rank), dst=dst, src=src, nbytes=None)

    for rank, traffic in enumerate(counted(size, ring)):
        assert traffic == Traffic(2, rank + 8, (rank - 1) % size + 8)


def test_one_way_and_idle():
    def body(group):
        if group.rank == 0:
            group.exchange(body_of(0, 30), dst=1, src=None, nbytes=None)
        elif group.rank == 1:
            group.exchange(None, dst=None, src=0, nbytes=None)
        else:
            group.exchange(None, dst=None, src=None, nbytes=None)

    assert counted(3, body) == [Traffic(2, 38, 0), Traffic(2, 0, 38), Traffic()]


@pytest.mark.parametrize("size", SIZES)
def test_all_gather(size):
    known = counted(size, lambda g: g.all_gather(body_of(0, 10), nbytes=[10] * size))
    unknown = counted(size, lambda g: g.all_gather(body_of(0, 10), nbytes=None))
    card = direct_all_gather(10, size)
    assert [traffic.cost for traffic in known] == [card] * size
    lengths = direct_all_gather(8, size)
    assert [traffic.cost for traffic in unknown] == [card + lengths] * size
    assert all(traffic.received == traffic.sent for traffic in known + unknown)


def test_uneven_all_gather_and_all_to_all():
    def gather(group):
        group.all_gather(body_of(0, 10 * group.rank), nbytes=[0, 10, 20])

    def swap(group):
        bodies = [body_of(0, group.rank + 10 * dst) for dst in range(3)]
        group.all_to_all(bodies, nbytes=None)

    assert counted(3, gather) == [
        Traffic(2, 0, 30), Traffic(2, 20, 20), Traffic(2, 40, 10)
    ]  # fmt: skip
    assert counted(3, swap) == [
        Traffic(4, 10 + 20 + 16, 1 + 2 + 16),
        Traffic(4, 1 + 21 + 16, 10 + 12 + 16),
        Traffic(4, 2 + 12 + 16, 20 + 21 + 16),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_shares_its_rounds(size):
    def reduce(group):
        group.all_reduce_((torch.zeros(101), Op.SUM), (torch.zeros(1), Op.MAX))

    large, small = ring_all_reduce(404, size), max_reduce(4, size)
    card = Cost(large.rounds, large.nbytes + small.nbytes)
    assert [traffic.cost for traffic in counted(size, reduce)] == [card] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_maximum_alone_takes_the_fewest_rounds(size):
    def reduce(group):
        group.all_reduce_((torch.zeros(5), Op.MAX))

    assert [traffic.cost for traffic in counted(size, reduce)] == [
        max_reduce(20, size)
    ] * size


def test_wait_is_time_inside_the_group():
    def body(group):
        group.all_gather(body_of(0, 10), nbytes=[10, 10])

    for traffic in counted(2, body, link=Link(latency=1.0, bandwidth=10.0)):
        assert traffic.wait == 2.0


def test_reset_returns_what_it_forgets():
    def body(group):
        counting = Counted(group)
        counting.all_gather(body_of(0, 10), nbytes=[10, 10])
        before = counting.traffic
        assert counting.reset() == before == Traffic(1, 10, 10)
        assert counting.traffic == Traffic()

    simulate(2, body)


def test_a_call_that_fails_counts_its_wait_only():
    def body(group):
        counting = Counted(group)
        with pytest.raises(Exception, match="one-dimensional"):
            counting.all_gather(torch.zeros(1), nbytes=None)
        return counting.traffic

    assert simulate(1, body) == [Traffic()]
