"""Gloo's threads have SCHED_BATCH only while messages are posted."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.workers import pool
from thinwire.groups import Op, gloo_scheduling
from thinwire.groups.gloo import GlooTransport

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has such a policy"
)


def _policies(loops):
    return {os.sched_getscheduler(loop) for loop in loops}


def _meanwhile(group):
    """Policies of Gloo's threads before, while, and after; and of this one."""
    loops = gloo_scheduling.gloo_threads()
    assert loops
    before = _policies(loops)
    with gloo_scheduling.as_batch(loops):
        meanwhile = _policies(loops), os.sched_getscheduler(0)
    return before, *meanwhile, _policies(loops)


@pytest.mark.processes
def test_gloo_s_threads_are_batch_threads_for_a_while():
    ordinary, batch = {os.SCHED_OTHER}, {os.SCHED_BATCH}
    expected = (ordinary, batch, os.SCHED_OTHER, ordinary)
    assert pool(2).run(_meanwhile) == [expected] * 2


class Watched:
    """A process group that notes the policies of threads at every send and receive."""

    def __init__(self, inner, look):
        self._inner, self._look = inner, look

    def __getattr__(self, name):
        if name in ("send", "recv"):
            self._look("post")
        return getattr(self._inner, name)


class Watching(GlooTransport):
    """A transport that notes the policies of its threads whenever it waits."""

    def __init__(self, process_group):
        self.seen = []
        super().__init__(Watched(process_group, self.look), pinned=False)
        self.deadline = time.monotonic() + 20.0

    def look(self, name):
        self.seen.append((name, _policies(self.threads)))

    def wait(self, works):
        if works:
            self.look("wait")
        super().wait(works)


def _own(group):
    """The threads of a transport of its own, and those that were there before."""
    before = gloo_scheduling.gloo_threads()
    transport = GlooTransport(dist.new_group(), pinned=False)
    transport.leave_alone(before)
    return set(transport.threads), set(before)


@pytest.mark.processes
def test_a_group_of_its_own_leaves_the_threads_of_others_alone():
    for own, before in pool(2).run(_own):
        assert own
        assert before
        assert not own & before


def _seen(group):
    """What a transport notes: a posted swap, another one, and a maximum."""
    transport, peer = Watching(dist.group.WORLD), 1 - group.rank
    transport.post_receives([(peer, 3)])
    for _ in range(2):
        transport.swap([(peer, torch.zeros(3, dtype=torch.uint8))], [(peer, 3)])
    transport.all_reduce_([(torch.zeros(1), Op.MAX)])
    return transport.seen


@pytest.mark.processes
def test_whenever_messages_are_posted_and_only_then():
    over, wait = ("post", {os.SCHED_BATCH}), ("wait", {os.SCHED_OTHER})
    for seen in pool(2).run(_seen):
        # Expected, then sent; received and sent; a maximum is received and sent.
        assert seen == 3 * [over, over, wait]


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Threads of our own making: their policies, and a folder to put them in."""
    policies = {}

    def choose(number, policy, _):
        if policies[number] is None:
            raise PermissionError
        policies[number] = policy

    def add(number, name, policy):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_bytes(name)
        policies[number] = policy

    monkeypatch.setattr(gloo_scheduling, "_THREADS", tmp_path)
    monkeypatch.setattr(
        os, "sched_getscheduler", lambda number: policies[number] or os.SCHED_OTHER
    )
    monkeypatch.setattr(os, "sched_setscheduler", choose)
    return policies, add


def test_only_gloo_s_threads_and_only_where_it_is_allowed(faked):
    policies, add = faked
    add(5, b"gloo_tcp_loop\n", os.SCHED_OTHER)
    add(6, b"gloo_tcp_loop\n", None)  # forbidden
    add(7, b"python\n", os.SCHED_OTHER)
    add(8, b"\xc3\n", os.SCHED_OTHER)
    assert sorted(gloo_scheduling.gloo_threads()) == [5, 6]
    with gloo_scheduling.as_batch((5, 6)):
        assert policies == {5: os.SCHED_BATCH, 6: None, 7: 0, 8: 0}
    assert policies == {5: os.SCHED_OTHER, 6: None, 7: 0, 8: 0}


def test_a_policy_that_was_chosen_stays(faked):
    policies, add = faked
    add(5, b"gloo_tcp_loop\n", os.SCHED_OTHER)
    add(6, b"gloo_tcp_loop\n", os.SCHED_IDLE)
    with gloo_scheduling.as_batch((5, 6)):
        assert policies == {5: os.SCHED_BATCH, 6: os.SCHED_IDLE}
    assert policies == {5: os.SCHED_OTHER, 6: os.SCHED_IDLE}


def test_a_policy_that_is_chosen_meanwhile_stays(faked):
    policies, add = faked
    add(5, b"gloo_tcp_loop\n", os.SCHED_OTHER)
    with gloo_scheduling.as_batch((5,)):
        policies[5] = os.SCHED_IDLE
    assert policies == {5: os.SCHED_IDLE}


def test_threads_are_let_go_when_sending_fails(faked):
    policies, add = faked
    add(5, b"gloo_tcp_loop\n", os.SCHED_OTHER)
    with pytest.raises(RuntimeError), gloo_scheduling.as_batch((5,)):
        raise RuntimeError
    assert policies == {5: os.SCHED_OTHER}


def test_threads_that_have_ended_and_a_system_without_them(monkeypatch):
    with gloo_scheduling.as_batch((2**22 + 1,)):
        pass
    monkeypatch.setattr(gloo_scheduling, "_THREADS", Path("nowhere"))
    assert gloo_scheduling.gloo_threads() == ()
