"""A run that was saved and resumed equals one that was not."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp

import thinwire
from tests.hooks.training import (
    SIZES,
    given_gradients,
    gradients_of,
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import pool
from thinwire.errors import AgreementError, ConfigError

pytestmark = pytest.mark.processes


def start(method="topk", kind="plain", **options):
    model = wrap(kind)
    return model, thinwire.attach(model, method, **options), optimizer_of(model)


def uninterrupted(group, steps, options):
    model, _, optimizer = start(**options)
    return [step_once(model, optimizer, group.rank, step) for step in range(steps)]


def interrupted(group, folder, at, steps, options):
    """Losses from step `at` on, after a save and a fresh start at that step."""
    model, state, optimizer = start(**options)
    for step in range(at):
        step_once(model, optimizer, group.rank, step)
    torch.save(model.module.state_dict(), f"{folder}/model.{group.rank}")
    torch.save(state.state_dict(), f"{folder}/thinwire.{group.rank}")

    model, state, optimizer = start(**options)
    model.module.load_state_dict(torch.load(f"{folder}/model.{group.rank}"))
    saved = torch.load(f"{folder}/thinwire.{group.rank}", weights_only=True)
    state.load_state_dict(saved)
    return [step_once(model, optimizer, group.rank, step) for step in range(at, steps)]


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"scope": "bucket", "density": 0.02},
        {"scope": "model", "density": 0.02},
        {"scope": "bucket", "method": "bf16"},
        {"scope": "bucket", "warmup": (2, 3)},
        {"scope": "bucket", "warmup": "auto", "method": "spardl", "density": 0.5},
        {"scope": "bucket", "kind": "mixed"},
        {"scope": "bucket", "feedback": "momentum"},
        {"scope": "bucket", "kind": "words", "min_size": 100},
        {"scope": "bucket", "clip": 0.01, "density": 0.02},
        {"scope": "bucket", "method": "gtopk"},
        {"scope": "bucket", "method": "gs-sgd"},
        {"scope": "bucket", "method": "spardl", "teams": 2, "gather": "bruck"},
        {"scope": "bucket", "method": "s2", "granularity": "row", "density": 0.1},
        {"scope": "bucket", "method": "s2", "feedback": "none", "density": 0.1},
        {"scope": "bucket", "kind": "rows", "method": "dense", "sparse": "s2"},
    ],
    ids=str,
)
def test_losses_are_the_same_bits(tmp_path, at, options):
    whole = pool(2).run(uninterrupted, 8, options)
    parts = pool(2).run(interrupted, str(tmp_path), at, 8, options)
    assert [losses[at:] for losses in whole] == parts


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        # Two teams of two: the controllers of the two blocks drift apart.
        (4, {"method": "spardl", "teams": 2, "gather": "bruck"}),
        (4, {"method": "spardl", "teams": 2, "gather": "bruck", "nodes": 2}),
        (6, {"method": "spardl", "nodes": 2, "feedback": "momentum"}),
        (6, {"method": "ok-topk", "nodes": 3}),
        (4, {"method": "s2", "nodes": [[0, 2], [3, 1]], "warmup": (2, 3)}),
    ],
    ids=str,
)
def test_ranks_that_remember_different_things_resume(tmp_path, ranks, options):
    options = {"density": 0.1, **options}
    whole = pool(ranks).run(uninterrupted, 8, options)
    parts = pool(ranks).run(interrupted, str(tmp_path), 5, 8, options)
    assert [losses[5:] for losses in whole] == parts


def without_loading(group, at, steps, options):
    model, _, optimizer = start(**options)
    for step in range(at):
        step_once(model, optimizer, group.rank, step)
    saved = model.module.state_dict()
    model, _, optimizer = start(**options)
    model.module.load_state_dict(saved)
    return [step_once(model, optimizer, group.rank, step) for step in range(at, steps)]


def test_residuals_matter():
    # The test above would pass without them if they were always zero.
    options = {"scope": "bucket", "density": 0.02}
    whole = pool(2).run(uninterrupted, 8, options)
    assert [x[4:] for x in whole] != pool(2).run(without_loading, 4, 8, options)


def lost_file(group, folder, method, steps):
    """Rank 1 has lost its file and goes on from rank 0's, without residuals."""
    model, state, optimizer = start(method=method, density=0.1)
    for step in range(4):
        step_once(model, optimizer, group.rank, step)
    torch.save(state.state_dict(), f"{folder}/{group.rank}")
    torch.distributed.barrier()
    state.load_state_dict(
        torch.load(f"{folder}/0"), residual="keep" if group.rank == 0 else "drop"
    )
    for step in range(4, 4 + steps):
        step_once(model, optimizer, group.rank, step)
    state.check_replicas()
    return True


@pytest.mark.parametrize("method", ["topk", "spardl", "s2", "cheapest"])
def test_a_rank_without_its_residuals_still_fits_in(tmp_path, method):
    assert pool(2).run(lost_file, str(tmp_path), method, 3) == [True, True]


def apart(group, folder, method):
    """Ranks load different steps; the error of each rank."""
    model, state, optimizer = start(method=method, density=0.1)
    saved = []
    for step in range(5):
        saved.append(copy.deepcopy(state.state_dict()))
        step_once(model, optimizer, group.rank, step)
    state.load_state_dict(saved[3 + group.rank])
    try:
        step_once(model, optimizer, group.rank, 5)
    except AgreementError as error:
        return str(error)
    return None


@pytest.mark.parametrize("method", ["topk", "s2"])
def test_ranks_that_loaded_different_steps_get_an_error(tmp_path, method):
    for message in pool(2).run(apart, str(tmp_path), method):
        assert "passes so far" in message


def alone(group, call):
    """Rank 0 makes a call that the others do not; then all load together."""
    model, state, optimizer = start(method="topk", density=0.1)
    saved = copy.deepcopy(state.state_dict())
    try:
        if group.rank == 0:
            {
                "load": lambda: state.load_state_dict(saved),
                "check_replicas": state.check_replicas,
            }[call]()
        step_once(model, optimizer, group.rank, 0)
    except AgreementError as error:
        state.load_state_dict(saved)
        return str(error)
    return None


@pytest.mark.parametrize("call", ["load", "check_replicas"])
def test_a_call_on_one_rank_alone_is_refused_on_all(call):
    for message in pool(2).run(alone, call):
        assert f'"{call}" on ranks [0], "backward" on ranks [1]' in message
        assert "on all ranks together" in message


def through_dcp(group, folder, at, steps, options):
    model, state, optimizer = start(**options)
    for step in range(at):
        step_once(model, optimizer, group.rank, step)
    dcp.save(
        {"model": model.module.state_dict(), "thinwire": state}, checkpoint_id=folder
    )

    model, state, optimizer = start(**options)
    loaded = {"model": model.module.state_dict(), "thinwire": state}
    dcp.load(loaded, checkpoint_id=folder)
    return [step_once(model, optimizer, group.rank, step) for step in range(at, steps)]


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_distributed_checkpoint(tmp_path, scope):
    options = {"scope": scope, "density": 0.02}
    whole = pool(2).run(uninterrupted, 8, options)
    parts = pool(2).run(through_dcp, str(tmp_path / "checkpoint"), 4, 8, options)
    assert [losses[4:] for losses in whole] == parts


def swapped(group, folder):
    """Every rank tries to load its neighbour's file; the error of each rank."""
    model, state, optimizer = start()
    step_once(model, optimizer, group.rank, 0)
    torch.save(state.state_dict(), f"{folder}/{group.rank}")
    torch.distributed.barrier()
    theirs = torch.load(f"{folder}/{(group.rank + 1) % group.size}")
    before = residual_of(state)
    try:
        state.load_state_dict(theirs)
    except ConfigError as error:
        message = str(error)
    unchanged = all(torch.equal(before[n], t) for n, t in residual_of(state).items())
    state.load_state_dict(theirs, residual="drop")
    dropped = all(not t.any() for t in residual_of(state).values())
    step_once(model, optimizer, group.rank, 1)
    return message, unchanged, dropped


def test_another_ranks_state_is_refused(tmp_path):
    for rank, (message, unchanged, dropped) in enumerate(
        pool(2).run(swapped, str(tmp_path))
    ):
        assert f"rank {rank} of 2" in message
        assert f"rank {1 - rank} of 2" in message
        for remedy in ("one file per rank", "residual='drop'", "flush()"):
            assert remedy in message
        assert unchanged
        assert dropped


def save_flushed(group, path):
    model, state, _ = start(kind="given")
    gradients = given_gradients(group.rank, 0)
    model(gradients).backward()
    before = residual_of(state)
    means = gradients_of(model)
    state.flush()
    after = residual_of(state)
    if group.rank == 0:
        torch.save(state.state_dict(), path)
    return gradients, means, before, gradients_of(model), after


def load_flushed(group, path):
    model, state, _ = start(kind="given")
    state.load_state_dict(torch.load(path))
    model(given_gradients(group.rank, 1)).backward()
    return gradients_of(model), residual_of(state)


def test_flush_delivers_everything_and_rank_0_serves_all(tmp_path):
    path = str(tmp_path / "state")
    ranks = pool(2).run(save_flushed, path)
    for name in SIZES:
        put_in = sum(rank[0][name] for rank in ranks)
        residual = sum(rank[2][name] for rank in ranks)
        assert residual.count_nonzero() > 0
        for _, means, _, flushed, after in ranks:
            assert torch.equal(2 * flushed[name], put_in)
            assert torch.equal(2 * means[name] + residual, put_in)
            assert not after[name].any()
    # Another number of workers may go on from it, too.
    for size in (2, 3):
        ranks = pool(size).run(load_flushed, path)
        assert all(torch.equal(r[0]["first"], ranks[0][0]["first"]) for r in ranks)


def refused(group, saved):
    model, state, optimizer = start()
    step_once(model, optimizer, group.rank, 0)
    before = state.state_dict()
    try:
        state.load_state_dict(saved)
    except ConfigError as error:
        return str(error), state.state_dict().keys() == before.keys()
    return None


def export(group, kind):
    _, state, _ = start(kind=kind)
    return state.state_dict()


def test_another_models_or_sizes_state_is_refused():
    message, unchanged = pool(2).run(refused, pool(2).run(export, "tied")[0])[0]
    assert "another model" in message
    assert unchanged
    saved = pool(3).run(export, "plain")[0]
    saved["rank 0 of 3"]["flushed"] = False
    message, _ = pool(2).run(refused, saved)[1]
    assert "rank 1 of 2" in message
    assert "rank 0 of 3" in message
    assert "version None" in pool(2).run(refused, {})[0][0]
    assert "version 7" in pool(2).run(refused, {"version": 7})[0][0]


def carry_to_dense(group):
    """A dense run that loads the state of a topk run delivers its residual."""
    model, state, _ = start(kind="given")
    model(given_gradients(group.rank, 0)).backward()
    saved, residual = state.state_dict(), residual_of(state)
    model, state, _ = start(kind="given", method="dense")
    state.load_state_dict(saved)
    model(given_gradients(group.rank, 1)).backward()
    return residual, gradients_of(model)


def test_a_change_of_method_strands_nothing():
    ranks = pool(2).run(carry_to_dense)
    for name in SIZES:
        fresh = sum(given_gradients(rank, 1)[name] for rank in range(2))
        residual = sum(rank[0][name] for rank in ranks)
        assert torch.equal(2 * ranks[0][1][name], fresh + residual)


def counters_after_flush(group):
    options = {"teams": 2, "gather": "bruck"}
    model, state, optimizer = start("spardl", density=0.1, **options)
    for step in range(4):
        step_once(model, optimizer, group.rank, step)
    (entries,) = (v for k, v in state.state_dict().items() if k != "version")
    before = entries["counters"]
    state.flush()
    (entries,) = (v for k, v in state.state_dict().items() if k != "version")
    return before, entries["counters"]


def test_flush_forgets_what_differs_from_rank_to_rank():
    for before, after in pool(2).run(counters_after_flush):
        assert "streak" in before
        assert "streak" not in after
