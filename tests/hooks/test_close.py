"""Closing a state releases what attach made; nothing is left, however often."""

import contextlib
import ctypes
import gc
import time
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import _global_optimizer_pre_hooks as step_hooks

import thinwire
from tests.hooks.training import batch, optimizer_of, step_once, wrap
from tests.workers import pool
from thinwire.errors import AgreementError, ConfigError, PeerError
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.engine import Engine
from thinwire.hooks.units import Units

pytestmark = pytest.mark.processes

CYCLES, SPAN = 200, 50


@contextlib.contextmanager
def only_new_objects():
    """Let the collector look at none of those that there are: it takes long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def usage():
    """Descriptors, threads and resident MB of this process, without what is free."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    process = Path("/proc/self")
    counts = [len(list((process / kind).iterdir())) for kind in ("fd", "task")]
    pages = int((process / "statm").read_text().split()[1])
    return *counts, pages * 4096 / 2**20


def one_cycle(group, number):
    """Attach and close; every fifth attach fails, on one rank first."""
    model = DDP(nn.Linear(1000, 250, bias=False))
    if number % 5 == 4:
        failing = mock.patch.object(Units, "_init", side_effect=MemoryError())
        fault = failing if group.rank == number % 2 else contextlib.nullcontext()
        with fault, pytest.raises((MemoryError, AgreementError)):
            thinwire.attach(model, "topk")
        return
    method = ("topk", "spardl", "dense", "auto")[number // 8 % 4]
    with thinwire.attach(model, method) as state:
        if number % 8 == 0:
            model(torch.ones(2, 1000)).sum().backward()
            assert state.metrics()["steps"] == 1


@only_new_objects()
def many_cycles(group):
    for number in range(40):
        one_cycle(group, number)
    seen = [(*usage(), len(step_hooks))]
    for number in range(40, 40 + CYCLES):
        one_cycle(group, number)
        if (number - 39) % SPAN == 0:
            seen.append((*usage(), len(step_hooks)))
    return seen


def test_many_attaches_leave_nothing():
    for seen in pool(2).run(many_cycles):
        before, after = seen[0], seen[-1]
        assert after[:2] == before[:2]
        assert after[3] == before[3]
        # What leaks, leaks in every span: a residual kept in each cycle would be 48 MB.
        # What a process of many tests allocates once is in one span only.
        megabytes = [each[2] for each in seen]
        grown = [now - then for then, now in pairwise(megabytes)]
        assert len(grown) == CYCLES // SPAN
        assert min(grown) < 10 * SPAN / CYCLES


def _all_are_gone():
    """Whether no new engine is left, which own residuals and threads."""
    for _ in range(50):  # the backend's threads may be about to drop a callback
        gc.collect()
        if not any(type(each) is Engine for each in gc.get_objects()):
            return True
        time.sleep(0.1)
    return False


def _settled(seen):
    """Descriptors and threads, when no more than at first, or after a while."""
    for _ in range(50):  # a thread that was told to end takes a moment
        time.sleep(0.1)
        now = usage()[:2]
        if not seen or (now[0] <= seen[0][0] and now[1] <= seen[0][1]):
            break
    return now


@only_new_objects()
def dropped(group, size):
    """Attach on some of the ranks, without close; each collects when it likes."""
    ranks = [0, 2] if size < group.size else list(range(size))
    part = dist.new_group(ranks)
    seen = []
    for number in range(4 if group.rank in ranks else 0):
        model = wrap(process_group=part)
        state = thinwire.attach(model, "topk")
        step_once(model, optimizer_of(model), group.rank, 0)
        state.check_replicas()
        del state, model
        if number % (group.rank + 1) == 0:
            assert _all_are_gone()
            seen.append(_settled(seen))
    # The names of later groups agree, though some groups have ended here and not there.
    assert TorchGroup.own().size == group.size
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_a_state_that_nothing_refers_to_is_released(size):
    for seen in pool(3).run(dropped, size):
        assert all(now[0] <= seen[0][0] and now[1] <= seen[0][1] for now in seen)


@only_new_objects()
def closed(group, method):
    model = wrap(find_unused_parameters=True)
    with thinwire.attach(model, method) as state:
        step_once(model, optimizer_of(model), group.rank, 0)
    state.close()
    hooks = [p._post_accumulate_grad_hooks for p in model.parameters()]  # noqa: SLF001
    assert not any(hooks)
    assert _all_are_gone()
    calls = [
        lambda: model(batch(group.rank, 1)).sum().backward(),
        lambda: model(batch(group.rank, 1)).sum().backward(),
        state.state_dict,
        lambda: state.load_state_dict({}),
        state.flush,
        lambda: state.save("nowhere"),
        lambda: state.load("nowhere"),
        state.metrics,
        state.deliveries,
        state.check_replicas,
    ]
    messages = []
    for call in calls:
        with pytest.raises(ConfigError) as caught:
            call()
        messages.append(str(caught.value))
    with torch.no_grad():
        model(batch(group.rank, 1))
    with pytest.raises(ConfigError, match="hook already"):
        thinwire.attach(model, method)
    again = DDP(model.module)
    state = thinwire.attach(again, method)
    loss = step_once(again, optimizer_of(again), group.rank, 0)
    state.check_replicas()
    return messages, loss


@pytest.mark.parametrize("method", ["topk", "dense", "auto"])
def test_a_closed_state_says_so(method):
    for messages, loss in pool(2).run(closed, method):
        assert all("DDP(model.module)" in message for message in messages)
        assert loss > 0


def close_alone(group):
    model = wrap()
    with thinwire.attach(model, "topk") as state:
        for step in range(2):  # DDP itself communicates in the second
            step_once(model, optimizer_of(model), group.rank, step)
        if group.rank == 0:
            return "closed"
        with pytest.raises(PeerError) as caught:
            step_once(model, optimizer_of(model), group.rank, 2)
    with pytest.raises(ConfigError, match="closed"):
        state.flush()
    return caught.value.ranks


def test_who_still_needs_a_rank_that_closed_is_told():
    assert pool(3).run(close_alone) == ["closed", (0,), (0,)]


def fail_inside(group):
    model = wrap()
    with pytest.raises(KeyError), thinwire.attach(model, "topk") as state:
        raise KeyError
    with pytest.raises(ConfigError, match="closed"):
        state.metrics()


def test_an_error_in_the_block_closes_too():
    pool(2).run(fail_inside)
