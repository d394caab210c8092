"""Real processes: messages that are longer or shorter than their receiver expects."""

import pytest
import torch
import torch.distributed as dist

from tests.groups.group_checks import body_of
from tests.workers import fresh
from thinwire.errors import GroupError, PeerError
from thinwire.groups import Op

pytestmark = pytest.mark.processes

TIMEOUT = 3.0


def _exchange(group, sent, expected, *, early):
    """Rank 0 sends so many bytes to rank 1, which expects others."""
    if group.rank == 1 and early:
        group.post_receives([(0, expected)])
    warm = torch.zeros(1)
    if not early:
        group.all_reduce_((warm, Op.SUM))
    if group.rank == 0:
        return group.exchange(body_of(0, sent), dst=1, src=None, nbytes=sent)
    return group.exchange(None, dst=None, src=0, nbytes=expected)


def _caught(group, call, *args, **options):
    """What a call raises, and whether the group is unusable then."""
    with pytest.raises(PeerError) as caught:
        call(group, *args, **options)
    with pytest.raises(GroupError, match="unusable since"):
        group.all_gather(body_of(0, 1), nbytes=None)
    return str(caught.value), caught.value.ranks


def _swapped(group, sent, expected, early):
    return _caught(group, _exchange, sent, expected, early=early)


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize(
    ("sent", "expected"), [(200, 100), (100, 200), (1 << 20, 8)], ids=str
)
def test_a_message_of_another_length_is_a_typed_error_on_both_ends(
    sent, expected, early
):
    outcomes = fresh(2, _swapped, sent, expected, early, group_timeout=TIMEOUT)
    assert [each.error for each in outcomes] == [None, None]
    for rank, outcome in enumerate(outcomes):
        message, ranks = outcome.result
        assert f"rank 0 sends {sent} bytes where rank 1 expects {expected}" in message
        assert ranks == (1 - rank,)
        assert outcome.exitcode == 0


def _gather(group):
    """Every rank expects what it has, and rank 1 has more than the others."""
    mine = body_of(0, 40 + 8 * (group.rank == 1))
    group.all_gather(mine, nbytes=[mine.numel()] * group.size)


def _maximum(group):
    lengths = (5, 9, 5)
    group.all_reduce_((torch.ones(lengths[group.rank]), Op.MAX))


@pytest.mark.parametrize("call", [_gather, _maximum])
def test_all_ranks_find_out_if_one_has_another_length(call):
    outcomes = fresh(3, _caught, call, group_timeout=TIMEOUT)
    assert [each.error for each in outcomes] == [None] * 3
    for rank, outcome in enumerate(outcomes):
        message, ranks = outcome.result
        assert "rank 1" in message
        assert rank not in ranks
        assert rank == 1 or 1 in ranks
        assert outcome.exitcode == 0


def _raw(group):
    """A peer that sends past the group, with a tag of its own."""
    if group.rank == 0:
        work = dist.group.WORLD.send([body_of(0, 200)], 1, 0)
        with pytest.raises(RuntimeError):
            work.wait()
        return None
    with pytest.raises(GroupError) as caught:
        group.exchange(None, dst=None, src=0, nbytes=100)
    return caught.value.ranks


def test_what_another_program_sends_does_not_match():
    sender, receiver = fresh(2, _raw, group_timeout=TIMEOUT)
    assert (sender.error, receiver.error) == (None, None)
    assert receiver.result == (0,)
    assert receiver.exitcode == 0


def _refused(group, rounds):
    """All ranks expect messages, exchange one, and refuse the reduction."""
    peer = 1 - group.rank
    for step in range(rounds):
        group.post_receives([(peer, 8), (peer, 16), (peer, 8)])
        group.exchange(body_of(step, 8), dst=peer, src=peer, nbytes=8)
        group.refuse_receives()
        largest = torch.tensor([group.rank])
        group.all_reduce_((largest, Op.MAX))
        assert largest.tolist() == [1]
        group.post_receives([(peer, 16), (peer, 8)])
        for nbytes in (16, 8):
            sent = body_of(10 * step + group.rank, nbytes)
            got = group.exchange(sent, dst=peer, src=peer, nbytes=nbytes)
            assert got.equal(body_of(10 * step + peer, nbytes))
    return True


def test_a_group_stays_usable_if_every_rank_refuses_alike():
    outcomes = fresh(2, _refused, 3)
    assert [each.error for each in outcomes] == [None, None]
    assert [each.exitcode for each in outcomes] == [0, 0]


def _refused_alone(group):
    peer = 1 - group.rank
    group.post_receives([(peer, 8), (peer, 16)])
    group.exchange(body_of(0, 8), dst=peer, src=peer, nbytes=8)
    if group.rank:
        group.refuse_receives()
    group.exchange(body_of(0, 16), dst=peer, src=peer, nbytes=16)


def test_a_refusal_of_one_rank_alone_is_found():
    outcomes = fresh(2, _caught, _refused_alone, group_timeout=TIMEOUT)
    assert [each.error for each in outcomes] == [None, None]
    for rank, outcome in enumerate(outcomes):
        message, ranks = outcome.result
        assert "has refused" in message
        assert ranks == (1 - rank,)
