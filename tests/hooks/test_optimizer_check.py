"""A plain Adam on sparse deliveries: one warning, on rank 0, and no more cost."""

import gc
import os
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)

import thinwire
from tests.hooks.training import batch, wrap
from tests.workers import pool
from thinwire.hooks.optimizer_check import OptimizerCheck, is_plain_adam


class Own(torch.optim.Adam):
    """A subclass of a user's."""


class FromElsewhere(torch.optim.Optimizer):
    """An Adam of another library, which has a state after the first step."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999)})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)


class Ours(torch.optim.AdamW):
    """Stands in for an optimizer of this package that knows of deliveries."""


Ours.__module__ = "thinwire.optim.adamw"


class UsersOwnOfOurs(Ours):
    """A subclass of it, in the user's module."""


ADAMS = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    Own,
    FromElsewhere,
]
OTHERS = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, Ours]
OTHERS += [UsersOwnOfOurs]


def hooks() -> int:
    return len(_global_optimizer_pre_hooks)


@pytest.fixture(autouse=True)
def _clean():
    before = dict(_global_optimizer_pre_hooks)
    _global_optimizer_pre_hooks.clear()  # what tests of other files have left
    yield
    _global_optimizer_pre_hooks.clear()
    _global_optimizer_pre_hooks.update(before)


def model_with_gradients():
    model = nn.Linear(3, 2)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    return model


def steps(*optimizers, count=3):
    """What is said while these optimizers step in turns."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(count):
            for each in optimizers:
                each.step()
    return said


@pytest.mark.parametrize("kind", ADAMS)
def test_one_warning_that_points_at_the_step(kind):
    model = model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    (said,) = steps(optimizer)
    scheduler.step()
    assert said.category is UserWarning
    assert said.filename == __file__
    for words in (kind.__name__, "thinwire.AdamW(..., state=state)", "2.25", "quiet"):
        assert words in str(said.message)
    assert hooks() == 0


@pytest.mark.parametrize("kind", OTHERS)
def test_no_warning(kind):
    model = model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    assert steps(kind(model.parameters(), lr=0.1)) == []
    assert hooks() == 0


@pytest.mark.parametrize("kind", [torch.optim.Adam, FromElsewhere])
@pytest.mark.parametrize("first", [False, True])
def test_each_optimizer_of_the_model_is_looked_at(kind, first):
    model = model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    both = [torch.optim.SGD([model.bias], 0.1), kind([model.weight], 0.1)]
    assert len(steps(*(reversed(both) if first else both))) == 1
    assert hooks() == 0


def test_optimizers_of_other_models_are_not_meant():
    model, other = model_with_gradients(), model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    assert steps(torch.optim.Adam(other.parameters())) == []
    assert hooks() == 1
    assert len(steps(torch.optim.Adam(model.parameters()))) == 1
    assert hooks() == 0


def test_nothing_is_kept_alive_and_nothing_stays():
    model = model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    optimizer = torch.optim.SGD([model.bias], 0.1)
    optimizer.step()
    ends = [weakref.ref(each) for each in (model, optimizer, model.weight)]
    del model, optimizer
    gc.collect()
    assert [end() for end in ends] == [None, None, None]
    other = model_with_gradients()
    assert steps(torch.optim.Adam(other.parameters())) == []
    assert hooks() == 0


def test_other_hooks_are_called_as_before():
    """Removing a hook while torch iterates over them would be an error."""
    calls = []
    model = model_with_gradients()
    handles = [
        register_optimizer_step_pre_hook(lambda *_, name=name: calls.append(name))
        for name in "ab"
    ]
    OptimizerCheck(model, list(model.parameters()))
    OptimizerCheck(model, list(model.parameters()))
    handles.append(register_optimizer_step_pre_hook(lambda *_: calls.append("c")))
    assert len(steps(torch.optim.Adam(model.parameters()), count=2)) == 2
    assert calls == ["a", "b", "c"] * 2
    assert hooks() == 3
    for handle in handles:
        handle.remove()


def test_a_warning_that_is_an_error_comes_once():
    model = model_with_gradients()
    OptimizerCheck(model, list(model.parameters()))
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(UserWarning, match="sparse delivery"):
        optimizer.step()
    optimizer.step()
    assert hooks() == 0


def test_the_verdict_needs_a_state_where_the_class_is_unknown():
    model = model_with_gradients()
    optimizer = FromElsewhere(model.parameters())
    assert not is_plain_adam(optimizer)
    optimizer.step()
    assert is_plain_adam(optimizer)


def said_after_attach(group, method, options, kind="plain", environment=""):
    """What is said in three steps of Adam, and the checks that are left."""
    os.environ["THINWIRE"] = environment
    try:
        model = wrap(kind)
        before = set(_global_optimizer_pre_hooks)
        thinwire.attach(model, method, **options)
        # Those of models of earlier tests may end in this one's steps.
        checks = set(_global_optimizer_pre_hooks) - before
    finally:
        del os.environ["THINWIRE"]
    parameters = [p for n, p in model.named_parameters() if "table" not in n]
    optimizers = [torch.optim.AdamW(parameters)] if parameters else []
    rows = [p for n, p in model.named_parameters() if "table" in n]
    optimizers += [torch.optim.SparseAdam(rows)] if rows else []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(3):
            model.zero_grad()
            model(batch(group.rank, step)).square().mean().backward()
            for each in optimizers:
                each.step()
    ours = [w for w in said if "thinwire.AdamW" in str(w.message)]
    left = checks & set(_global_optimizer_pre_hooks)
    return len(checks), len(ours), len(left)


WATCHED, UNWATCHED = [(1, 1, 0), (0, 0, 0)], [(0, 0, 0), (0, 0, 0)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "options", "kind", "environment", "expected"),
    [
        ("spardl", {}, "plain", "", WATCHED),
        ("gs-sgd", {"warmup": "auto"}, "plain", "", WATCHED),
        ("topk", {}, "words", "", WATCHED),
        ("topk", {"warn": False}, "plain", "", UNWATCHED),
        ("topk", {}, "plain", "quiet", UNWATCHED),
        ("topk", {}, "plain", "dense", UNWATCHED),
        ("topk", {"density": 1.0}, "plain", "", UNWATCHED),
        ("topk", {}, "rows", "", UNWATCHED),
        ("dense", {}, "plain", "", UNWATCHED),
        ("bf16", {}, "plain", "", UNWATCHED),
    ],
)
def test_rank_0_alone_warns_of_sparse_methods(
    method, options, kind, environment, expected
):
    got = pool(2).run(said_after_attach, method, options, kind, environment)
    assert got == expected


SCRIPT = """
import torch, thinwire
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(64, 64))
thinwire.attach(model, "topk")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.processes
def test_torchrun_shows_one_warning(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning: AdamW takes a sparse delivery") == 1
    assert f"{script}:13: UserWarning" in done.stderr
