"""What goes wrong in attach on one rank is an error on every rank that names it."""

import contextlib
import os
import signal
from unittest import mock

import pytest
import torch.distributed as dist

import thinwire
from tests.hooks.training import make_model, optimizer_of, step_once, wrap
from tests.workers import fresh, pool
from thinwire import catalog
from thinwire.errors import AgreementError, PeerError
from thinwire.groups import own_groups
from thinwire.hooks import inspection, parts
from thinwire.hooks.units import Units
from thinwire.layout import Layout

pytestmark = pytest.mark.processes


def broken(owner, name, kind, text):
    """The context in which a function raises."""
    return mock.patch.object(owner, name, side_effect=kind(text))


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no repr")


# What rank 1 does otherwise: options, functions that raise, and what others hear.
FAULTS = {
    "list": ({"warmup": [1, 2]}, [], "warmup is [1, 2]"),
    "text": ({"density": "1%"}, [], "density is '1%'"),
    "group": ({"process_group": "x"}, [], "process_group is 'x'"),
    "unprintable": ({"seed": Unprintable()}, [], "RuntimeError: no repr"),
    "reducer": ({}, [(catalog, "reducer", KeyError, "lost")], "KeyError: 'lost'"),
    "layout": ({}, [(Layout, "of", OSError, "disk")], "OSError: disk"),
    "memory": ({}, [(Units, "_init", MemoryError, "7 GB")], "MemoryError: 7 GB"),
    "build": ({}, [(parts, "Engine", ValueError, "odd")], "ValueError: odd"),
    "json": (
        {},
        [(inspection, "trained_parameters", AssertionError, "two\nlines \udc80")],
        "AssertionError: two",
    ),
}


def fail_on_one(group, fault, lonely):
    options, faults, _ = FAULTS[fault]
    model = wrap()
    with contextlib.ExitStack() as stack:
        if group.rank == lonely:
            for each in faults:
                stack.enter_context(broken(*each))
        given = options if group.rank == lonely else {}
        with pytest.raises(Exception, match=r".") as caught:
            thinwire.attach(model, "topk", **given)
    state = thinwire.attach(model, "topk")
    loss = step_once(model, optimizer_of(model), group.rank, 0)
    state.check_replicas()
    return caught.type, str(caught.value), loss


@pytest.mark.parametrize("lonely", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_on_one_rank_reaches_all(fault, lonely):
    # The group's timeout is half an hour: a rank that waits for it fails this test.
    outcomes = pool(3).run(fail_on_one, fault, lonely)
    for rank, (kind, message, loss) in enumerate(outcomes):
        assert loss > 0
        assert FAULTS[fault][2].rpartition(": ")[2] in message
        if rank != lonely:
            assert kind is AgreementError
            assert f"rank {lonely} cannot start: {FAULTS[fault][2]}" in message


def unwrapped_on_one(group):
    wrapped = wrap()
    model = make_model() if group.rank == 1 else wrapped
    with pytest.raises(thinwire.ThinwireError) as caught:
        thinwire.attach(model, "topk")
    thinwire.attach(wrapped, "topk")
    return caught.type, str(caught.value)


def test_an_unwrapped_model_on_one_rank():
    outcomes = pool(3).run(unwrapped_on_one)
    assert all("not DistributedDataParallel" in message for _, message in outcomes)
    assert "rank 1 cannot start" in outcomes[0][1]
    assert "rank 1 cannot start" in outcomes[2][1]


def outside(group):
    """Rank 2 is not in the group that the others reduce over."""
    pair = dist.new_group([0, 1])
    model = wrap()
    try:
        thinwire.attach(model, "topk", process_group=pair)
    except thinwire.ConfigError as error:
        return str(error)
    return None


def test_a_rank_outside_the_group_is_refused_alone():
    first, second, third = pool(3).run(outside)
    assert first is None
    assert second is None
    assert "give a process group that this rank is in" in third


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


DEATHS = {
    "first": (catalog, "reducer"),
    "settings": (inspection, "trained_parameters"),
    "group": (own_groups, "make"),
    "connecting": (dist, "new_group"),
    "memory": (Units, "_init"),
}


def die_on_one(group, where):
    model = wrap()
    try:
        if group.rank == 1:
            with mock.patch.object(*DEATHS[where], die):
                thinwire.attach(model, "topk", timeout=3.0)
        thinwire.attach(model, "topk", timeout=3.0)
    except thinwire.ThinwireError as error:
        return type(error), getattr(error, "ranks", None), str(error)
    return None


@pytest.mark.parametrize("where", DEATHS)
def test_a_death_in_attach_is_an_error_that_names_the_rank(where):
    outcomes = fresh(3, die_on_one, where, lost=[1])
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].error
        kind, ranks, message = outcomes[rank].result
        assert kind is PeerError, message
        assert ranks == (1,)
        assert "rank 1" in message
