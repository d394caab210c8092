"""A dead or stuck peer: backward raises an error that names it on every other rank."""

import os
import signal
import time
from functools import partial

import pytest

import thinwire
from tests.hooks.training import batch, optimizer_of, step_once, wrap
from tests.workers import fresh
from thinwire.errors import GroupError, InconsistentStateError, PeerError

pytestmark = pytest.mark.processes

SECONDS = 3.0


def lose_a_peer(group, method, scope, how, kind="plain", **options):
    """Rank 1 is lost at step 3; the errors of the others, then and afterwards."""
    model = wrap(kind)
    state = thinwire.attach(model, method, scope=scope, timeout=SECONDS, **options)
    optimizer = optimizer_of(model)
    errors = []
    for step in range(5):
        if step == 3 and group.rank == 1:
            os.kill(os.getpid(), how)
        start = time.monotonic()
        try:
            step_once(model, optimizer, group.rank, step)
        except (GroupError, InconsistentStateError) as error:
            ranks = getattr(error, "ranks", None)
            errors.append((type(error), ranks, str(error), time.monotonic() - start))
    try:
        state.state_dict()
    except InconsistentStateError as error:
        errors.append((type(error), None, str(error), 0.0))
    return errors


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("method", "scope"),
    [
        ("topk", "bucket"),
        ("topk", "model"),
        ("dense", "bucket"),
        ("gtopk", "bucket"),
        ("spardl", "bucket"),
    ],
)
def test_survivors_get_errors_that_name_the_lost_rank(method, scope, how):
    outcomes = fresh(
        3, lose_a_peer, method, scope, how, lost=[1], group_timeout=3 * SECONDS
    )
    check_survivors(outcomes)


@pytest.mark.parametrize(("kind", "sparse"), [("words", "gather"), ("rows", "union")])
def test_a_lost_rank_is_named_with_sparse_embeddings(kind, sparse):
    given = ("topk", "bucket", signal.SIGKILL, kind)
    lose = partial(lose_a_peer, sparse=sparse)
    outcomes = fresh(3, lose, *given, lost=[1], group_timeout=3 * SECONDS)
    check_survivors(outcomes)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("method", "ranks"), [("spardl", 4), ("topk", 6)])
def test_ranks_of_other_nodes_name_the_lost_rank(method, ranks, how):
    """Rank 0 alone is on its node and waits for it first."""
    lose = partial(lose_a_peer, nodes=2)
    given = (method, "bucket", how)
    outcomes = fresh(ranks, lose, *given, lost=[1], group_timeout=3 * SECONDS)
    check_survivors(outcomes)


def test_seven_survivors_name_the_lost_rank():
    given = ("spardl", "bucket", signal.SIGKILL)
    outcomes = fresh(8, lose_a_peer, *given, lost=[1], group_timeout=3 * SECONDS)
    check_survivors(outcomes)


def check_survivors(outcomes):
    assert len(outcomes) > 2
    for rank in set(range(len(outcomes))) - {1}:
        assert outcomes[rank].error is None, outcomes[rank].error
        first, second, third = outcomes[rank].result
        kind, ranks, message, seconds = first
        assert kind is PeerError
        assert ranks == (1,), message
        assert "rank 1" in message
        # Not a measurement: it must not have waited for something else's timeout.
        assert seconds < 3 * SECONDS
        for refusal in (second, third):
            assert refusal[0] is InconsistentStateError
            assert "restart every rank from the last checkpoint" in refusal[2]


def uneven_batches(group):
    """Rank 1 stops early, without join: the others must not wait for ever."""
    model = wrap()
    thinwire.attach(model, "topk", timeout=SECONDS)
    if group.rank == 1:
        time.sleep(3 * SECONDS)
        return None
    try:
        model(batch(group.rank, 0)).sum().backward()
    except PeerError as error:
        return error.ranks
    return ()


def test_a_rank_that_stays_away():
    outcomes = fresh(2, uneven_batches, group_timeout=60.0)
    assert outcomes[0].result == (1,)
