"""A dead or stuck rank of a sharded model: it is named, and no rank hangs."""

import os
import signal
import time

import pytest
import torch

from tests.hooks.sharded.training import attached, build, run, sgd
from tests.hooks.training import batch
from tests.workers import fresh, pool
from thinwire.errors import InconsistentStateError, PeerError

pytestmark = pytest.mark.processes

SECONDS = 3.0


def lose_a_rank(group, overlap, victim, when):
    """The error of a rank when another one is lost, and that of the next call."""
    model, mesh = build(2)
    state = attached(model, mesh, "spardl", overlap=overlap, timeout=SECONDS)
    optimizer = sgd(model)
    run(model, state, optimizer, range(3), group.rank, overlap=overlap)
    if group.rank == victim:
        if when == "reduce":
            state._engine.begin = die  # noqa: SLF001
        else:
            die()
    start = time.monotonic()
    try:
        run(model, state, optimizer, range(3, 5), group.rank, overlap=overlap)
    except Exception as error:
        took = time.monotonic() - start
        kind, ranks = type(error), getattr(error, "ranks", ())
    else:
        return "no error"
    try:
        state.state_dict()
    except InconsistentStateError:
        return kind.__name__, ranks, took, "refused"
    return kind.__name__, ranks, took, "kept"


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("when", ["step", "reduce"])
def test_a_lost_rank_is_named(overlap, when):
    outcomes = fresh(4, lose_a_rank, overlap, 3, when, lost=[3])
    for rank in range(3):
        assert outcomes[rank].error is None, outcomes[rank].error
        kind, ranks, took, state = outcomes[rank].result
        # The one with the other shard of the replica may hear of it from FSDP.
        if rank != 2 or kind == PeerError.__name__:
            assert kind == PeerError.__name__
            assert 3 in ranks
            # Rank 2 is still there, but no longer in any call.
            assert set(ranks) <= {2, 3}
            assert state == "refused"
        assert took < 4 * SECONDS


class Fails(torch.autograd.Function):
    """The identity, whose backward pass raises."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, grad):
        raise ArithmeticError


def go_on_after_an_error(group, overlap):
    """What the next step says after a backward pass that raised half-way."""
    model, mesh = build(2)
    state = attached(model, mesh, overlap=overlap)
    optimizer = sgd(model)
    run(model, state, optimizer, range(3), group.rank, overlap=overlap)
    # The last layer has its gradient then, and the others have none.
    fail = model.middle.register_forward_hook(lambda *given: Fails.apply(given[-1]))
    with pytest.raises(ArithmeticError):
        model(batch(group.rank, 3)).square().mean().backward()
    fail.remove()
    try:
        run(model, state, optimizer, [4], group.rank, overlap=overlap)
    except InconsistentStateError:
        return "refused"
    state.check_replicas()
    return "reduced"


@pytest.mark.parametrize(("overlap", "then"), [(True, "refused"), (False, "reduced")])
def test_a_step_after_a_backward_that_raised_is_not_left_unreduced(overlap, then):
    assert pool(4).run(go_on_after_an_error, overlap) == [then] * 4
