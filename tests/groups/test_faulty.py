import pytest
import torch

from tests.groups.faulty import Fault, Faulty
from tests.groups.group_checks import CHECKS, body_of
from thinwire.cost import Link
from thinwire.errors import GroupError
from thinwire.groups import Op, simulate


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_group_without_faults_is_sound(check):
    results = simulate(3, lambda group: check(Faulty(group)))
    assert all(result == results[0] for result in results)


def _on_rank_1(*faults):
    return lambda group: Faulty(group, *(faults if group.rank == 1 else ()))


def _swap(group):
    peer = 1 - group.rank
    return group.exchange(body_of(group.rank, 4), dst=peer, src=peer, nbytes=4)


def test_die_raises_at_its_call_and_not_before():
    def body(group):
        group = _on_rank_1(Fault(1, "die"))(group)
        _swap(group)
        calls.append(group.rank)
        _swap(group)

    calls = []
    with pytest.raises(GroupError, match="rank 1 dies at call 1"):
        simulate(2, body)
    assert sorted(calls) == [0, 1]


def test_truncate_takes_a_byte_from_what_was_received():
    def body(group):
        group = _on_rank_1(Fault(0, "truncate"), Fault(1, "truncate"))(group)
        swapped = _swap(group)
        gathered = group.all_gather(body_of(group.rank, 3), nbytes=None)
        return len(swapped), [len(one) for one in gathered], len(_swap(group))

    assert simulate(2, body) == [(4, [3, 3], 4), (3, [2, 3], 4)]


def test_flip_turns_one_bit():
    def body(group):
        group = _on_rank_1(Fault(0, "flip"), Fault(1, "flip"), Fault(2, "flip"))(group)
        swapped = _swap(group)
        received = group.all_to_all([body_of(group.rank, 2)] * 2, nbytes=None)
        total = torch.ones(2, dtype=torch.int32)
        group.all_reduce_((total, Op.SUM))
        return swapped[0].item(), [one[0].item() for one in received], total.tolist()

    sound, damaged = simulate(2, body)
    assert sound == (31, [0, 31], [2, 2])
    assert damaged == (1, [1, 31], [3, 2])


def test_stall_delays_the_peers():
    def body(group):
        faults = (Fault(0, "stall", seconds=5.0),) if group.rank == 1 else ()
        _swap(Faulty(group, *faults, sleep=group.spend))
        return group.now()

    assert simulate(2, body, link=Link(latency=1.0)) == [6.0, 5.0]


def test_there_is_nothing_to_truncate_in_an_all_reduce():
    def body(group):
        Faulty(group, Fault(0, "truncate")).all_reduce_((torch.ones(1), Op.SUM))

    with pytest.raises(GroupError, match="truncated"):
        simulate(1, body)
