"""Saved and loaded: with the bits of an uninterrupted run, or by other ranks."""

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import thinwire
from tests.hooks.sharded.training import (
    attached,
    build,
    local,
    locals_of,
    residual_of,
    run,
    sgd,
)
from tests.hooks.training import optimizer_of, step_once, wrap
from tests.workers import fresh, pool
from thinwire.errors import ConfigError

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]

STEPS = 4


class Training:
    """A sharded model, its state and thinwire's AdamW."""

    def __init__(self, shards, method="spardl", kind="uneven", **options):
        self.model, self.mesh = build(shards, kind)
        options.setdefault("density", 0.05)
        self.state = attached(self.model, self.mesh, method, **options)
        self.optimizer = thinwire.AdamW(
            self.model.parameters(), lr=1e-2, state=self.state
        )

    def run(self, rank, *steps):
        run(self.model, self.state, self.optimizer, range(*steps), rank)

    def save(self, folder, how):
        """Everything by DCP, but for thinwire's own ways."""
        model, optimizer = self.model, self.optimizer
        saved = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        if how == "dcp":
            saved["thinwire"] = self.state
        elif how == "folder":
            self.state.save(f"{folder}/residuals")
        else:
            torch.save(self.state.state_dict(), f"{folder}/{dist.get_rank()}.pt")
        dcp.save(saved, checkpoint_id=f"{folder}/checkpoint")

    def load(self, folder, how):
        model, optimizer = self.model, self.optimizer
        saved = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        if how == "dcp":
            saved["thinwire"] = self.state
        dcp.load(saved, checkpoint_id=f"{folder}/checkpoint")
        set_model_state_dict(model, saved["model"])
        set_optimizer_state_dict(model, optimizer, saved["optimizer"])
        if how == "folder":
            self.state.load(f"{folder}/residuals")
        elif how == "files":
            path = f"{folder}/{dist.get_rank()}.pt"
            self.state.load_state_dict(torch.load(path, weights_only=True))

    def result(self):
        self.state.check_replicas()
        return locals_of(self.model), residual_of(self.state)


def whole(group, shards, options):
    training = Training(shards, **options)
    training.run(group.rank, 0, 2 * STEPS)
    return training.result()


def first_half(group, folder, how, shards, options):
    training = Training(shards, **options)
    training.run(group.rank, 0, STEPS)
    training.save(folder, how)


def second_half(group, folder, how, shards, options):
    training = Training(shards, **options)
    training.load(folder, how)
    training.run(group.rank, STEPS, 2 * STEPS)
    return training.result()


def same(one, other):
    return all(
        mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("how", ["dcp", "folder", "files"])
@pytest.mark.parametrize(
    "options", [{}, {"method": "topk", "scope": "model", "feedback": "momentum"}]
)
def test_a_resumed_run_has_the_same_bits(tmp_path, how, options):
    wanted = pool(4).run(whole, 2, options)
    pool(4).run(first_half, str(tmp_path), how, 2, options)
    found = pool(4).run(second_half, str(tmp_path), how, 2, options)
    assert all(map(same, found, wanted))


def killed(group, folder, victim):
    """A save at half time, and some steps later a rank is killed."""
    training = Training(2, timeout=3.0)
    training.run(group.rank, 0, STEPS)
    training.save(folder, "folder")
    training.run(group.rank, STEPS, STEPS + 2)
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        training.run(group.rank, STEPS + 2, 2 * STEPS)
    except Exception as error:
        return type(error).__name__
    return None


def test_a_run_goes_on_after_a_rank_was_killed(tmp_path):
    outcomes = fresh(4, killed, str(tmp_path), 2, lost=[2], group_timeout=10.0)
    assert all(outcomes[rank].result for rank in (0, 1, 3))
    wanted = pool(4).run(whole, 2, {})
    found = pool(4).run(second_half, str(tmp_path), "folder", 2, {})
    assert all(map(same, found, wanted))


def saved(group, folder, how, shards, kind):
    """Residuals by name, of all shards together."""
    if kind == "ddp":
        model = wrap()
        state = thinwire.attach(model, "topk", density=0.05, warn=False)
        optimizer = optimizer_of(model)
        for step in range(3):
            step_once(model, optimizer, group.rank, step)
    else:
        training = Training(shards, "topk", kind)
        training.run(group.rank, 0, 3)
        state = training.state
    keep(state, folder, how, group.rank)
    return residual_of(state)


def keep(state, folder, how, rank):
    if how == "folder":
        state.save(folder)
    elif how == "dcp":
        dcp.save({"app": state}, checkpoint_id=folder)
    else:
        Path(folder).mkdir(exist_ok=True)
        torch.save(state.state_dict(), f"{folder}/{rank}.pt")
        dist.barrier()


def loaded(group, folder, how, shards, kind):
    training = Training(shards, "topk", kind)
    training.state.load(sorted(Path(folder).iterdir()) if how == "files" else folder)
    found = residual_of(training.state)
    training.run(group.rank, 3, 5)
    training.state.check_replicas()
    return found


def means(residuals, shards):
    """The mean over replicas of the whole residuals."""
    replicas = len(residuals) // shards
    found = {}
    for name in residuals[0]:
        each = [
            torch.cat([residuals[r * shards + s][name] for s in range(shards)])
            for r in range(replicas)
        ]
        found[name] = torch.stack(each).double().sum(0) / replicas
    return found


@pytest.mark.parametrize(
    ("before", "after", "how", "kind"),
    [
        ((2, 2), (3, 2), "folder", "uneven"),
        ((3, 2), (2, 2), "dcp", "uneven"),
        ((2, 2), (4, 1), "files", "uneven"),
        ((1, 4), (2, 2), "folder", "uneven"),
        ((2, 2), (2, 3), "dcp", "uneven"),
        ((3, 2), (1, 3), "folder", "uneven"),
        ((4, 1), (2, 2), "folder", "ddp"),
        ((3, 1), (2, 2), "dcp", "ddp"),
    ],
    ids=str,
)
def test_other_numbers_of_replicas_and_shards_lose_nothing(
    tmp_path, before, after, how, kind
):
    folder = str(tmp_path / "saved")
    then = pool(before[0] * before[1]).run(saved, folder, how, before[1], kind)
    model = "plain" if kind == "ddp" else kind
    now = pool(after[0] * after[1]).run(loaded, folder, how, after[1], model)
    wanted, found = means(then, before[1]), means(now, after[1])
    for name, mean in wanted.items():
        assert mean.count_nonzero() > 0
        torch.testing.assert_close(found[name], mean, rtol=1e-5, atol=1e-7)


def refused(group, folder, options):
    model, mesh = build(2)
    state = attached(model, mesh, "topk", density=0.05)
    run(model, state, sgd(model), range(2), group.rank)
    before = residual_of(state)
    try:
        state.load(folder, **options)
    except ConfigError as error:
        after = residual_of(state)
        assert all(torch.equal(before[name], after[name]) for name in before)
        return str(error)
    return None


def test_a_missing_shard_is_named_or_dropped(tmp_path):
    folder = tmp_path / "saved"
    pool(4).run(saved, str(folder), "folder", 2, "uneven")
    (lost,) = folder.glob("save-*/rank-3-of-4.pt")
    lost.unlink()
    for message in pool(4).run(refused, str(folder), {}):
        assert "rank 1 of 2, shard 1 of 2" in message
        assert str(lost) in message
    assert pool(4).run(refused, str(folder), {"missing": "drop"}) == [None] * 4


def into_ddp(group, folder):
    state = thinwire.attach(wrap(), "topk", density=0.05, warn=False)
    try:
        state.load(folder)
    except ConfigError as error:
        return str(error)
    return None


def test_a_state_of_another_model_is_refused(tmp_path):
    pool(4).run(saved, str(tmp_path / "ddp"), "folder", 1, "ddp")
    for message in pool(4).run(refused, str(tmp_path / "ddp"), {}):
        assert "another model" in message
    pool(4).run(saved, str(tmp_path / "sharded"), "folder", 2, "plain")
    for message in pool(4).run(into_ddp, str(tmp_path / "sharded")):
        assert "of a sharded model, and this one is not" in message


def moments_are_shards(group):
    """The sizes of the optimizer's moments, of which each rank has its shard."""
    training = Training(2)
    training.run(group.rank, 0, 3)
    states = training.optimizer.state
    sizes = [
        (tuple(local(state["exp_avg"]).shape), tuple(local(p).shape))
        for p, state in states.items()
    ]
    return all(mine == theirs for mine, theirs in sizes), len(sizes)


def test_moments_are_of_the_shard():
    assert pool(4).run(moments_are_shards) == [(True, 7)] * 4
