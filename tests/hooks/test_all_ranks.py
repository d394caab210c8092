"""state.all_ranks: the state of every rank in rank 0's state dict."""

import pytest
import torch

import thinwire
from tests.hooks.training import (
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import pool
from thinwire.errors import AgreementError, ConfigError, GroupError, ThinwireError
from thinwire.hooks import all_ranks

pytestmark = pytest.mark.processes

STEPS = 4
OPTIONS = [
    {"method": "topk"},
    {"method": "spardl", "feedback": "momentum", "scope": "model"},
    {"method": "dense"},
    {"method": "topk", "kind": "words"},
    {"method": "gs-sgd"},
]


def started(method, kind="plain", **options):
    model = wrap(kind)
    state = thinwire.attach(model, method, density=0.05, warn=False, **options)
    return model, state, optimizer_of(model)


def save_rank_0(group, path, options):
    """Save as frameworks do; then train on."""
    model, state, optimizer = started(**options)
    for step in range(STEPS):
        step_once(model, optimizer, group.rank, step)
    saved = state.all_ranks.state_dict()
    own = state.state_dict()
    key = f"rank {group.rank} of {group.size}"
    assert set(own) <= set(saved)
    assert len(saved) == (group.size if group.rank == 0 else 1) + 1
    if group.rank == 0:
        torch.save({"thinwire": saved, "model": model.module.state_dict()}, path)
    residual = residual_of(state)
    losses = [step_once(model, optimizer, group.rank, step) for step in range(STEPS, 7)]
    return residual, losses, {k: v for k, v in own[key].items() if k != "residual"}


def load_rank_0(group, path, options):
    model, state, optimizer = started(**options)
    loaded = torch.load(path, weights_only=True)
    model.module.load_state_dict(loaded["model"])
    state.all_ranks.load_state_dict(loaded["thinwire"])
    residual = residual_of(state)
    return residual, [
        step_once(model, optimizer, group.rank, step) for step in range(STEPS, 7)
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o.values()))
@pytest.mark.parametrize("piece", [1 << 24, 1000])
def test_as_many_ranks_resume_with_the_same_bits(tmp_path, options, piece):
    path = str(tmp_path / "checkpoint.pt")
    saved = pool(3).run(with_pieces, piece, path, options)
    found = pool(3).run(load_rank_0, path, options)
    # Residuals differ, so one for all would show.
    if options["method"] != "dense":
        name = next(iter(saved[0][0]))
        assert not torch.equal(saved[0][0][name], saved[1][0][name])
    for (before, losses, _), (after, resumed) in zip(saved, found, strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert losses == resumed


def with_pieces(group, piece, path, options):
    usual = all_ranks.PIECE
    all_ranks.PIECE = piece
    try:
        return save_rank_0(group, path, options)
    finally:
        all_ranks.PIECE = usual


@pytest.mark.parametrize("after", [1, 2, 4])
def test_another_number_of_ranks_loses_nothing(tmp_path, after):
    path = str(tmp_path / "checkpoint.pt")
    options = {"method": "topk"}
    saved = pool(3).run(save_rank_0, path, options)
    found = pool(after).run(load_rank_0, path, options)
    for name in saved[0][0]:
        then = sum(residual[name].double() for residual, *_ in saved) / 3
        now = sum(residual[name].double() for residual, _ in found) / after
        assert then.count_nonzero() > 0
        torch.testing.assert_close(then, now, rtol=1e-6, atol=1e-6)


def of_rank_0_only(group, path):
    """A file of rank 1, which has its own entries only, given to all ranks."""
    model, state, optimizer = started("topk")
    step_once(model, optimizer, group.rank, 0)
    saved = state.all_ranks.state_dict()
    if group.rank == 1:
        torch.save(saved, path)
    torch.distributed.barrier()
    try:
        state.all_ranks.load_state_dict(torch.load(path, weights_only=True))
    except ConfigError as error:
        return str(error)
    return None


def test_what_another_rank_returns_is_not_taken_for_all(tmp_path):
    first, second = pool(2).run(of_rank_0_only, str(tmp_path / "one.pt"))
    assert "missing: rank 0 of 2" in first
    assert "refused on rank 0" in second


def in_different_calls(group):
    _, state, _ = started("topk")
    try:
        if group.rank == 0:
            state.all_ranks.state_dict()
        else:
            state.check_replicas()
    except AgreementError as error:
        return str(error)
    return None


def test_different_calls_are_named():
    for message in pool(2).run(in_different_calls):
        assert "all_ranks.state_dict" in message
        assert "check_replicas" in message


def alone(group, method, options):
    """Rank 0 saves alone, as a script with `if rank == 0` does; others train on."""
    model, state, optimizer = started(method, timeout=5.0, **options)
    for step in range(3):
        step_once(model, optimizer, group.rank, step)
    try:
        if group.rank == 0:
            state.all_ranks.state_dict()
        for step in range(3, 6):
            step_once(model, optimizer, group.rank, step)
    except ThinwireError as error:
        return isinstance(error, GroupError), str(error)
    return None


ALONE = [
    ("topk", {}),
    ("spardl", {"on_nonfinite": "unchecked"}),
    ("dense", {}),
]


@pytest.mark.parametrize(("method", "options"), ALONE)
@pytest.mark.parametrize("size", [2, 3])
def test_rank_0_alone_is_an_error_that_says_so(size, method, options):
    first, *others = pool(size).run(alone, method, options)
    assert first is not None
    assert first[0]
    assert "call it on every rank" in first[1]
    assert None not in others
