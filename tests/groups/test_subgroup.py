"""Subgroups: some ranks of a group, over sockets or through memory they share."""

import fcntl
import os
import signal
from pathlib import Path
from struct import Struct

import pytest
import torch

from tests.groups.group_checks import CHECKS, body_of
from tests.workers import fresh, pool
from thinwire.errors import PeerError, WireError
from thinwire.groups import Counted, Group, Op, simulate
from thinwire.groups.shared_memory import LONG, SharedMemoryGroup


def within(group: Group, check, size: int, *, near: bool):
    """Run a check in each of two subgroups at once: odd ranks, and even ones."""
    members = range(group.rank % 2, 2 * size, 2)
    return check(group.subgroup(members, "half", near=near))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_simulated(check, size):
    seen = simulate(2 * size, lambda group: within(group, check, size, near=False))
    assert all(each == seen[0] for each in seen)


def within_shared(group, check, size):
    return within(group, check, size, near=True)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_real_ones_that_share_memory(check, size):
    seen = pool(2 * size).run(within_shared, check, size)
    assert all(each == seen[0] for each in seen)


def test_the_whole_group_counts_what_its_parts_send():
    def body(group):
        counted = Counted(group)
        part = counted.subgroup([group.rank ^ 1, group.rank], "pair")
        assert part is counted.subgroup([group.rank ^ 1, group.rank], "pair")
        peer = 1 - part.rank
        part.exchange(body_of(0, 10), dst=peer, src=peer, nbytes=10)
        own = torch.ones(4)
        part.all_reduce_((own, Op.SUM))
        assert own.tolist() == [2.0] * 4
        assert part.rank_in_whole(peer) == group.rank ^ 1
        pair, other = counted.traffic_of("pair"), counted.traffic_of("other")
        assert other.sent == 0
        assert counted.traffic == pair
        return pair.sent, pair.rounds, counted.reset().sent, counted.traffic.sent

    assert simulate(4, body) == [(26, 3, 26, 0)] * 4


def share(group, lengths):
    """Long and short bodies in turn, again and again, some of them in one direction."""
    part = group.subgroup(range(group.size), "all", near=True)
    assert isinstance(part, SharedMemoryGroup)
    for turn, length in enumerate(lengths * 3):
        sizes = [
            [length if (src + dst + turn) % 3 else 0 for dst in range(part.size)]
            for src in range(part.size)
        ]
        sent = [
            body_of(7 * turn + part.rank + dst, sizes[part.rank][dst])
            for dst in range(part.size)
        ]
        received = part.all_to_all(sent, nbytes=[row[part.rank] for row in sizes])
        for src, body in enumerate(received):
            expected = body_of(7 * turn + src + part.rank, sizes[src][part.rank])
            assert body.equal(expected)
            body.zero_()  # it is the receiver's until the next call
    return part.shares_memory


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_long_bodies_pass_through_memory(ranks):
    lengths = [LONG, 10, 3 * LONG + 5, LONG - 1, 0, LONG]
    assert pool(ranks).run(share, lengths) == [True] * ranks


def share_nothing(group, lengths):
    """One rank cannot open files of the others: none uses them."""
    if group.rank == 1:
        SharedMemoryGroup.opened = staticmethod(refuse)
    try:
        return share(group, lengths)
    finally:
        if group.rank == 1:
            SharedMemoryGroup.opened = staticmethod(open_file)


def refuse(address):
    raise OSError("another container")


open_file = SharedMemoryGroup.opened


@pytest.mark.processes
def test_ranks_that_share_no_memory_use_sockets():
    assert pool(3).run(share_nothing, [LONG, 10, 2 * LONG]) == [False] * 3


def garble(group):
    """Rank 1 announces more than its file has."""
    part = group.subgroup(range(group.size), "all", near=True)
    part.all_to_all([body_of(0, LONG)] * 2, nbytes=[LONG] * 2)
    if group.rank == 1:
        part.exchange(None, dst=None, src=0, nbytes=1)  # it has read the last one
        part.exchange(body_of(0, 1), dst=0, src=0, nbytes=1)
        return ""
    with pytest.raises(WireError) as caught:
        part.all_to_all([body_of(0, 1)] * 2, nbytes=[1, 9 * LONG])
    return str(caught.value)


@pytest.mark.processes
def test_a_file_that_is_too_short_is_an_error():
    outcomes = fresh(2, garble)
    assert outcomes[0].error is None
    assert "from rank 1: no shared memory" in outcomes[0].result


ADDRESS = Struct("<qq16s")


def memory(*, seal: bool, token: bytes) -> int:
    descriptor = os.memfd_create("thinwire", os.MFD_ALLOW_SEALING)
    os.write(descriptor, token)
    if seal:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def test_a_false_address_is_refused(tmp_path):
    token, here = b"t" * 16, os.getpid()
    sealed = memory(seal=True, token=token)
    opened = SharedMemoryGroup.opened(ADDRESS.pack(here, sealed, token))
    address = opened.address()
    del opened
    with pytest.raises(OSError, match="No such file"):  # it was closed
        SharedMemoryGroup.opened(address)
    with pytest.raises(ValueError, match="not the file"):
        SharedMemoryGroup.opened(ADDRESS.pack(here, sealed, b"u" * 16))
    cut = memory(seal=False, token=token)
    with pytest.raises(ValueError, match="can be cut"):
        SharedMemoryGroup.opened(ADDRESS.pack(here, cut, token))
    with (tmp_path / "plain").open("w+b", buffering=0) as plain:
        plain.write(token)
        with pytest.raises(OSError, match="Invalid argument"):
            SharedMemoryGroup.opened(ADDRESS.pack(here, plain.fileno(), token))
    for descriptor in (sealed, cut):
        os.close(descriptor)


def cut_short(group):
    """Rank 1 tries to cut the files that rank 0 has mapped, which must not work."""
    part = group.subgroup(range(group.size), "all", near=True)
    for turn in range(3):
        received = part.all_to_all([body_of(turn, LONG)] * 2, nbytes=[LONG] * 2)
        if group.rank == 1:
            for link in Path("/proc/self/fd").iterdir():
                if "memfd:thinwire" in os.path.realpath(link):
                    with pytest.raises(PermissionError):
                        os.truncate(link, 0)
        assert received[1 - group.rank].equal(body_of(turn, LONG))
    return part.shares_memory


@pytest.mark.processes
def test_a_peer_cannot_cut_a_file():
    assert pool(2).run(cut_short) == [True, True]


def lose(group):
    """Rank 1 dies between two long messages; the error of rank 0."""
    part = group.subgroup(range(group.size), "all", near=True)
    for turn in range(3):
        if turn == 2 and group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            part.all_to_all([body_of(turn, LONG)] * 2, nbytes=[LONG] * 2)
        except PeerError as error:
            return error.ranks
    return ()


@pytest.mark.processes
def test_a_dead_rank_is_named():
    assert fresh(2, lose, lost=[1], group_timeout=5.0)[0].result == (1,)
