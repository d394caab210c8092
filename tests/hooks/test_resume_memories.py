"""What collectives remember is loaded on all ranks or on none, or they would hang."""

import pytest
import torch

import thinwire
from tests.hooks.training import given_gradients, wrap
from tests.workers import fresh

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::UserWarning")]

PAIRS = {"nodes": [[0, 1], [2, 3]]}
OTHERS = {"nodes": [[0, 2], [1, 3]]}
TEAMS = {"teams": 2, "gather": "bruck"}


def resumed(group, method, before, after, of_rank_0, load):
    """Train, load on all ranks, of rank 0's state on some of them, and train on."""
    model, state = attached(method, before)
    train(model, group.rank, steps=4)
    saved = [None] * group.size
    torch.distributed.all_gather_object(saved, state.state_dict())
    state.close()
    model, state = attached(method, after)
    source = 0 if group.rank in of_rank_0 else group.rank
    state.load_state_dict(saved[source], **load)
    train(model, group.rank, steps=3)
    state.check_replicas()
    return True


def attached(method, options):
    model = wrap("given", bucket_cap_mb=0.005)
    return model, thinwire.attach(model, method, density=0.02, **options)


def train(model, rank, steps):
    for step in range(steps):
        model(given_gradients(rank, step)).backward()


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        ("ok-topk", PAIRS, PAIRS),
        ("ok-topk", PAIRS, OTHERS),
        ("ok-topk", PAIRS, {}),
        ("ok-topk", {}, PAIRS),
        ("spardl", PAIRS | TEAMS, OTHERS | TEAMS),
    ],
    ids=str,
)
def test_a_run_goes_on_with_other_nodes(method, before, after):
    finished(method, before, after, [], {})


@pytest.mark.parametrize("load", [{"missing": "drop"}, {"residual": "drop"}], ids=str)
@pytest.mark.parametrize(
    ("method", "options"),
    [("ok-topk", PAIRS), ("spardl", PAIRS | TEAMS), ("spardl", TEAMS)],
    ids=str,
)
def test_some_ranks_load_the_state_of_another(method, options, load):
    finished(method, options, options, [1], load)


def finished(*args):
    for outcome in fresh(4, resumed, *args, group_timeout=20.0):
        assert outcome.error is None
        assert outcome.result
