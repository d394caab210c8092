from itertools import pairwise

import pytest
import torch
from experiments.tasks.base import Recipe
from torch import nn

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
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ],
)
def test_bad_recipes_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**{**BASE, **changes})
