"""Gloo's threads wait for a core, unless their owner has said how they are to run."""

import os
import sys
from pathlib import Path

import pytest

from thinwire.groups import courtesy
from thinwire.groups.torch import TorchGroup
from workers import pool

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a policy"),
]


def _threads(name: str) -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(t.name) for t in tasks if (t / "comm").read_text().strip() == name]


def _policies(group):
    loops = _threads("gloo_tcp_loop")
    assert loops
    return {os.sched_getscheduler(loop) for loop in loops}, os.sched_getscheduler(0)


def test_gloo_s_threads_push_nobody_aside():
    for loops, own in pool(2).run(_policies):
        assert loops == {os.SCHED_BATCH}
        assert own == os.SCHED_OTHER  # nobody else is asked


def _chosen(group):
    first, *_ = loops = _threads("gloo_tcp_loop")
    os.sched_setscheduler(first, os.SCHED_IDLE, os.sched_param(0))
    try:
        TorchGroup()
        return os.sched_getscheduler(first)
    finally:
        for loop in loops:
            os.sched_setscheduler(loop, os.SCHED_BATCH, os.sched_param(0))


def test_a_policy_that_was_chosen_stays():
    assert pool(2).run(_chosen) == [os.SCHED_IDLE] * 2


def test_what_is_not_there_or_not_allowed_is_let_be(monkeypatch, tmp_path):
    monkeypatch.setattr(courtesy, "_THREADS", tmp_path / "nowhere")
    courtesy.ask()
    monkeypatch.setattr(courtesy, "_THREADS", tmp_path)
    for number in (0, 2**22 + 1):  # this thread, and one that has ended
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text("gloo_tcp_loop\n")
    (tmp_path / "7").mkdir()  # without a name any more

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    courtesy.ask()
