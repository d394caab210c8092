from itertools import pairwise

import pytest
import torch
from experiments.tasks.base import Recipe
from experiments.train.reduction import Reduction
from torch import nn

import thinwire
from thinwire.errors import ConfigError

BASE = {"epochs": 10, "batch": 4, "learning_rate": 1.0}


def rates(**changes):
    recipe = Recipe(**{**BASE, **changes})
    return [recipe.rate(step, 10) for step in range(10 * recipe.epochs)]


def test_every_schedule_starts_at_the_learning_rate_and_falls_as_it_says():
    assert set(rates()) == {1.0}
    assert set(rates(schedule="steps", milestones=(0.5, 0.9))) == {1.0, 0.1, 0.1**2}
    for schedule in ("cosine", "linear"):
        falling = rates(schedule=schedule)
        assert falling == sorted(falling, reverse=True)
        assert falling[0] > 0.99
        assert 0 < falling[-1] < 0.01


def test_the_warm_up_rises_to_the_learning_rate_without_a_jump():
    warm = rates(schedule="cosine", warmup_epochs=3)
    assert warm[:30] == sorted(warm[:30])
    assert warm[30:] == sorted(warm[30:], reverse=True)
    assert max(abs(a - b) for a, b in pairwise(warm)) < 0.05


def test_a_warm_up_longer_than_the_run_never_falls():
    short = rates(schedule="cosine", warmup_epochs=30)
    assert short == sorted(short)


def test_warm_up_densities_never_fall_below_the_one_in_the_end():
    recipe = Recipe(**BASE, densities=(0.25, 0.004))
    assert [recipe.density(epoch, 0.01) for epoch in range(3)] == [0.25, 0.01, 0.01]


def test_the_optimizer_has_what_the_recipe_says():
    recipe = Recipe(**BASE, momentum=0.9, weight_decay=1e-3, nesterov=True)
    for momentum in (None, 0.0):
        weight = nn.Parameter(torch.ones(1))
        (group,) = recipe.optimizer_of([weight], momentum=momentum).param_groups
        assert group["weight_decay"] == 1e-3
        assert group["momentum"] == (0.9 if momentum is None else 0.0)
        assert group["nesterov"] == (momentum is None)


def test_a_cosine_may_end_above_zero():
    falling = rates(schedule="cosine", warmup_steps=20, final=0.1)
    assert falling[:20] == sorted(falling[:20])
    assert falling[20:] == sorted(falling[20:], reverse=True)
    assert 0.1 < falling[-1] < 0.101


def test_adamw_decays_matrices_only():
    recipe = Recipe(**BASE, optimizer="adamw", betas=(0.8, 0.9), weight_decay=0.1)
    model = nn.Linear(3, 2)
    optimizer = recipe.optimizer_of(model.parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    matrices, rest = optimizer.param_groups
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert matrices["params"] == [model.weight]
    assert rest["params"] == [model.bias]
    assert matrices["betas"] == rest["betas"] == (0.8, 0.9)


class Waiting(torch.optim.SGD):
    """Stands for an AdamW that knows how long entries waited."""

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, lr)


@pytest.mark.parametrize(
    ("method", "optimizer", "waits"),
    [
        ("spardl", "adamw", True),
        ("gtopk-published", "adamw", True),
        ("spardl", "torch-adamw", False),
        ("dense", "adamw", False),
        ("bf16", "adamw", False),
        ("powersgd", "adamw", False),
    ],
)
def test_where_entries_wait_the_optimizer_knows(monkeypatch, method, optimizer, waits):
    monkeypatch.setattr(thinwire, "AdamW", Waiting, raising=False)
    recipe = Recipe(**BASE, optimizer=optimizer)
    found = Reduction(method=method).optimizer(recipe, nn.Linear(3, 2))
    assert isinstance(found, Waiting if waits else torch.optim.AdamW)


def test_sparse_rows_and_dense_weights_share_one_adagrad():
    table = nn.Embedding(5, 2, sparse=True)
    recipe = Recipe(**BASE, optimizer="adagrad")
    optimizer = recipe.optimizer_of(table.parameters())
    before = table.weight.detach().clone()
    table(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    changed = (table.weight != before).any(1)
    assert changed.tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"densities": (0.5, 0.0)}, "density of 0.0"),
        ({"optimizer": "adagrad", "momentum": 0.9}, "Adagrad has no momentum"),
        ({"schedule": "cosin"}, "schedule is 'cosin'"),
        ({"optimizer": "adamw", "momentum": 0.9}, "AdamW has no momentum"),
        ({"final": 1.5}, "final is 1.5"),
        ({"betas": (0.9, 1.0)}, "betas are"),
        ({"epoch_steps": 0}, "epoch_steps is 0"),
        ({"warmup_steps": 3, "warmup_epochs": 1.0}, "not both"),
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ],
)
def test_bad_recipes_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**{**BASE, **changes})
