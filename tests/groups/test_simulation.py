import random
import time

import pytest
import torch

from tests.groups.group_checks import CHECKS, body_of
from thinwire.cost import Link
from thinwire.errors import DeadlockError, GroupError
from thinwire.groups import Op, SimulatedGroup, simulate

LINK = Link(latency=1.0, bandwidth=10.0)
SIZES = (1, 2, 3, 4, 5, 7, 8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_group(check, size):
    results = simulate(size, check)
    assert all(result == results[0] for result in results)


# Clocks, worked out by hand: a latency of 1 s, and 10 bytes per second.


def test_both_directions_of_a_link_work_at_once():
    def swap(group):
        peer = 1 - group.rank
        group.exchange(body_of(0, 20), dst=peer, src=peer, nbytes=20)
        return group.now()

    assert simulate(2, swap, link=LINK) == [3.0, 3.0]


def test_a_sender_does_not_wait_and_a_receiver_does():
    def one_way(group):
        if group.rank == 0:
            group.exchange(body_of(0, 20), dst=1, src=None, nbytes=20)
        else:
            group.exchange(None, dst=None, src=0, nbytes=20)
        return group.now()

    assert simulate(2, one_way, link=LINK) == [2.0, 3.0]


def test_a_message_that_waits_for_its_receiver_costs_no_time():
    def late(group):
        if group.rank == 0:
            group.exchange(body_of(0, 20), dst=1, src=None, nbytes=20)
        else:
            group.spend(100.0)
            group.exchange(None, dst=None, src=0, nbytes=20)
        return group.now()

    assert simulate(2, late, link=LINK) == [2.0, 100.0]


def test_a_length_costs_a_latency_and_eight_bytes():
    def swap(group):
        peer = 1 - group.rank
        group.exchange(body_of(0, 20), dst=peer, src=peer, nbytes=None)
        return group.now()

    def one_way(group):
        if group.rank == 0:
            group.exchange(body_of(0, 20), dst=1, src=None, nbytes=None)
        else:
            group.exchange(None, dst=None, src=0, nbytes=None)
        return group.now()

    assert simulate(2, swap, link=LINK) == pytest.approx([4.8, 4.8])
    assert simulate(2, one_way, link=LINK) == pytest.approx([3.8, 4.8])


def test_incast_is_served_in_order_of_senders_clocks_then_ranks():
    def incast(group):
        if group.rank > 0:
            # Rank 3 sends first, then 1 and 2 at the same moment.
            group.spend(0.0 if group.rank == 3 else 0.5)
            group.exchange(body_of(0, 10), dst=0, src=None, nbytes=10)
            return group.now()
        times = []
        for src in (3, 1, 2):
            group.exchange(None, dst=None, src=src, nbytes=10)
            times.append(group.now())
        return times

    assert simulate(4, incast, link=LINK) == [[2.0, 3.0, 4.0], 1.5, 1.5, 1.0]


def test_a_ring_moves_at_the_pace_of_its_slowest_rank():
    def ring(group):
        if group.rank == 0:
            group.spend(5.0)
        dst, src = (group.rank + 1) % 3, (group.rank - 1) % 3
        times = []
        for _ in range(2):
            group.exchange(body_of(0, 10), dst=dst, src=src, nbytes=10)
            times.append(group.now())
        return times

    expected = [[6.0, 7.0], [7.0, 8.0], [2.0, 9.0]]
    assert simulate(3, ring, link=LINK) == expected


def test_collectives_take_the_rounds_of_their_cards():
    def collectives(group):
        times = []
        group.all_gather(body_of(0, 10), nbytes=[10] * 4)
        times.append(group.now())
        group.all_gather(body_of(0, 10), nbytes=None)
        times.append(group.now())
        group.all_to_all([body_of(0, 20)] * 4, nbytes=[20] * 4)
        times.append(group.now())
        group.all_reduce_((torch.zeros(10), Op.SUM), (torch.zeros(5), Op.MAX))
        times.append(group.now())
        group.all_reduce_((torch.zeros(5), Op.MAX))
        times.append(group.now())
        return times

    gather, lengths, swap = 3 * 2.0, 3 * 1.8, 3 * 3.0
    reduce = 6 * (1.0 + 10 / 10) + 2 * 20 / 10  # chunks of 10 bytes; 20, twice
    largest = 2 * (1.0 + 20 / 10)
    expected = [gather, 2 * gather + lengths, 2 * gather + lengths + swap]
    expected.append(expected[-1] + reduce)
    expected.append(expected[-1] + largest)
    for times in simulate(4, collectives, link=LINK):
        assert times == pytest.approx(expected)


def test_a_collective_waits_for_its_latest_rank():
    def gather(group):
        group.spend(10.0 * group.rank)
        group.all_gather(body_of(0, 10), nbytes=[10] * 2)
        return group.now()

    # Rank 1's packet leaves at 10 and takes 2; rank 0's had arrived long before.
    assert simulate(2, gather, link=LINK) == [12.0, 11.0]


def test_a_maximum_is_known_when_the_latest_rank_s_has_come_round():
    def late(group):
        if group.rank == 0:
            group.spend(10.0)
        group.all_reduce_((torch.zeros(10, dtype=torch.uint8), Op.MAX))
        return group.now()

    # Rank 0's goes to rank 1, by 12, then to rank 2; rank 3 has it from rank 1.
    assert simulate(4, late, link=LINK) == [12.0, 13.0, 13.0, 14.0]


def test_nothing_takes_no_time():
    def nothing(group):
        group.exchange(body_of(0, 0), dst=1 - group.rank, src=1 - group.rank, nbytes=0)
        group.all_gather(body_of(0, 0), nbytes=[0, 0])
        group.all_reduce_((torch.zeros(0), Op.SUM), (torch.zeros(0), Op.MAX))
        return group.now()

    assert simulate(2, nothing, link=LINK) == [0.0, 0.0]


def _busy(group: SimulatedGroup, naps: random.Random) -> tuple[float, int]:
    """Incasts, rings and collectives between ranks whose threads sleep at random."""
    seen = 0
    for step in range(3):
        time.sleep(naps.random() * 0.003)
        group.spend(0.1 * ((group.rank * 7 + step) % 3))
        if group.rank == 0:
            for src in range(1, group.size):
                group.exchange(None, dst=None, src=src, nbytes=None)
        else:
            group.exchange(body_of(0, group.rank), dst=0, src=None, nbytes=None)
        dst, src = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        got = group.exchange(body_of(group.rank, 9), dst=dst, src=src, nbytes=9)
        seen += int(got.sum())
        group.all_gather(body_of(0, group.rank), nbytes=None)
    return group.now(), seen


def test_clocks_do_not_depend_on_scheduling():
    runs = [
        simulate(5, lambda group: _busy(group, random.Random()), link=LINK)
        for _ in range(5)
    ]
    assert all(run == runs[0] for run in runs)
    assert len({clock for clock, _ in runs[0]}) > 1


def test_only_one_rank_runs_at_a_time():
    running = []

    def body(group):
        for _ in range(3):
            running.append(group.rank)
            time.sleep(0.001)
            assert running == [group.rank]
            running.clear()
            group.all_gather(body_of(0, 1), nbytes=None)

    simulate(4, body)


def test_deadlock_says_who_waits_for_whom():
    def circle(group):
        group.exchange(None, dst=None, src=(group.rank + 1) % 3, nbytes=4)

    with pytest.raises(DeadlockError, match="rank 1 waits for a message from rank 2"):
        simulate(3, circle)


def test_deadlock_with_ranks_that_have_left():
    def leave(group):
        if group.rank != 1:
            group.all_gather(body_of(0, 1), nbytes=None)

    with pytest.raises(
        DeadlockError, match="rank 0 waits in all_to_all; rank 1 has returned"
    ):
        simulate(3, leave)


def test_one_rank_that_raises_stops_all():
    errors = []

    def body(group):
        if group.rank == 2:
            raise ZeroDivisionError("mine")
        try:
            group.all_gather(body_of(0, 1), nbytes=None)
        except GroupError as error:
            errors.append((group.rank, str(error)))
            raise RuntimeError("a consequence") from error

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        simulate(4, body)
    assert caught.value.__notes__ == ["raised on simulated rank 2 of 4"]
    message = "rank 2 failed: ZeroDivisionError('mine')"
    assert sorted(errors) == [(0, message), (1, message), (3, message)]


def test_of_several_failures_the_lowest_rank_s_is_raised():
    def body(group):
        raise ValueError(f"of rank {group.rank}")

    with pytest.raises(ValueError, match="of rank 0"):
        simulate(3, body)


def _gather_or_reduce(group):
    if group.rank == 2:
        group.all_reduce_((torch.zeros(1), Op.SUM))
    else:
        group.all_gather(body_of(0, 1), nbytes=None)


def _gather_of_other_lengths(group):
    lengths = [1, 1, 5] if group.rank == 1 else [1, 1, 1]
    group.all_gather(body_of(0, 1), nbytes=lengths)


def _gather_half_announced(group):
    group.all_gather(body_of(0, 1), nbytes=None if group.rank == 1 else [1, 1, 1])


def _reduce_of_other_lengths(group):
    group.all_reduce_((torch.zeros(3 + group.rank // 2), Op.SUM))


def _reduce_of_other_ops(group):
    group.all_reduce_((torch.zeros(3), Op.MAX if group.rank == 1 else Op.SUM))


def _exchange_of_other_lengths(group):
    dst, src = (group.rank + 1) % 3, (group.rank - 1) % 3
    group.exchange(body_of(0, 4 + group.rank), dst=dst, src=src, nbytes=4)


def _exchange_half_announced(group):
    dst, src = (group.rank + 1) % 3, (group.rank - 1) % 3
    nbytes = None if group.rank == 0 else 4
    group.exchange(body_of(0, 4), dst=dst, src=src, nbytes=nbytes)


def _message_that_nobody_wants(group):
    if group.rank == 1:
        group.exchange(body_of(0, 4), dst=2, src=None, nbytes=4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_gather_or_reduce, "rank 0 calls all_to_all, rank 2 calls all_reduce_"),
        (_gather_of_other_lengths, "rank 1 expects 5 bytes from rank 2, which sends 1"),
        (_gather_half_announced, r"rank 0 announces lengths \(1, 1, 1\), rank 1 None"),
        (
            _reduce_of_other_lengths,
            "rank 0 reduces sum of 3 torch.float32, rank 2 reduces sum of 4",
        ),
        (_reduce_of_other_ops, "rank 0 reduces sum of 3 .*, rank 1 reduces max of 3"),
        (
            _exchange_of_other_lengths,
            "rank 0 expects 4 bytes from rank 2, which sends 6",
        ),
        (_exchange_half_announced, "rank 0 expects a length from rank 2"),
        (_message_that_nobody_wants, "rank 1 sent 4 bytes to rank 2, which never"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_that_do_not_fit_are_errors(body, message):
    with pytest.raises(GroupError, match=message):
        simulate(3, body)


def test_a_group_needs_a_rank():
    with pytest.raises(GroupError, match="at least one"):
        simulate(0, lambda group: None)


def test_threads_of_torch_are_given_back():
    before = torch.get_num_threads()
    assert simulate(2, lambda _: torch.get_num_threads()) == [1, 1]
    assert torch.get_num_threads() == before


def test_256_ranks():
    link = Link(latency=50e-6, bandwidth=125e6)
    nbytes = 8000

    def body(group):
        sent = body_of(group.rank, nbytes)
        for level in range(8):
            peer = group.rank ^ 1 << level
            received = group.exchange(sent, dst=peer, src=peer, nbytes=nbytes)
            assert received.equal(body_of(peer, nbytes))
        bodies = group.all_gather(sent, nbytes=[nbytes] * group.size)
        assert bodies[77].equal(body_of(77, nbytes))
        x = torch.full((100_000,), float(group.rank))
        group.all_reduce_((x, Op.SUM))
        assert x.min() == x.max() == 255 * 128
        return group.now()

    packet = 50e-6 + nbytes / 125e6
    chunk = 50e-6 + 1563 / 125e6
    expected = (8 + 255) * packet + 510 * chunk
    assert simulate(256, body, link=link) == pytest.approx([expected] * 256)
