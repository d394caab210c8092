"""A step is planned once; it is planned anew where, and only where, something changed.

Every step is compared with the rule, so a plan that is out of date fails.
"""

import sys
import weakref

import pytest
import torch
from torch import nn

from tests.optim.given import Training, parameters
from tests.optim.oracle import Oracle
from thinwire.optim import adamw
from thinwire.optim.plan import Plan

SOURCES = pytest.mark.parametrize("known", [False, True], ids=["grad", "state"])


class Counted(Training):
    """A training that is checked in each step, and counts its plans."""

    def __init__(self, known, monkeypatch, params=None):
        super().__init__(params or parameters(), known=known)
        self.oracle = Oracle(self.optimizer)
        self.plans = 0
        monkeypatch.setattr(adamw, "Plan", self.plan)

    def plan(self, members):
        self.plans += 1
        return Plan(members)

    def train(self, steps=4, change=lambda: None):
        """Steps with new gradients, changed by `change`; returns the plans made."""
        before = self.plans
        for _ in range(steps):
            masks = self.draw(0.2)
            change()
            gone = [p for p in self.params if p.grad is None]
            self.deliver({**masks, **{p: masks[p] & False for p in gone}}, whole=False)
            self.oracle.step(masks)
            self.optimizer.step()
            self.oracle.check()
        return self.plans - before


@SOURCES
def test_new_gradients_of_the_same_layout(known, monkeypatch):
    training = Counted(known, monkeypatch)
    assert training.train() == 1
    assert training.train(70) == 0

    def copied():
        for param in training.params:
            grad, param.grad = param.grad, None
            param.grad = grad.clone()

    assert training.train(change=copied) == 0


def test_a_parameter_with_gaps_that_is_delivered_in_part(monkeypatch):
    *filled, gaps = parameters()
    training = Counted(True, monkeypatch, [gaps, *filled])
    assert training.train() == 1


@SOURCES
def test_options_are_read_in_every_step(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()

    def scheduled():
        for group in training.optimizer.param_groups:
            group["lr"] *= 0.7
            group["betas"] = (0.7, 0.95)
            group["weight_decay"] = 0.3
            group["maximize"] = not group["maximize"]

    assert training.train(change=scheduled) == 0


@SOURCES
def test_a_new_group_of_parameters(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    new = nn.Parameter(torch.randn(11))
    training.optimizer.add_param_group({"params": [new], "lr": 0.5})

    def give():
        new.grad = torch.randn(11)

    assert training.train(change=give) == 1
    training.optimizer.param_groups[0]["params"].pop(0)
    assert training.train(change=give) == 1


@SOURCES
def test_gradients_of_another_layout(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    param = training.params[0]

    def transposed():
        param.grad = param.grad.t().contiguous().t()

    assert training.train(change=transposed) == 1
    assert training.train() == 1


@SOURCES
def test_unused_parameters(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()

    def unused():
        training.params[1].grad = None

    assert training.train(change=unused) == 1
    assert training.train() == 1


@SOURCES
def test_frozen_parameters_step_if_they_have_gradients_as_in_torch(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    training.params[0].requires_grad_(False)
    assert training.train() == 0
    training.params[0].requires_grad_(True)
    assert training.train() == 0


@SOURCES
def test_values_that_were_replaced(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    kept = training.params[0].data
    training.params[0].data = kept.clone()
    assert training.train() == 1
    if not known:  # DDP knows the strides from the beginning
        training.params[0].data = kept.t().contiguous().t()
        assert training.train() == 1


@SOURCES
def test_a_loaded_state(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.oracle.optimizer = training.optimizer
    assert training.train() == 1


@SOURCES
def test_a_state_that_was_changed(known, monkeypatch):
    training = Counted(known, monkeypatch)
    training.train()
    param = training.params[0]
    state = training.optimizer.state[param]
    state["exp_avg"] = state["exp_avg"] * 2
    training.oracle.state[param]["m"] *= 2
    assert training.train() == 1
    # The others of its group go on with their own count.
    state = training.optimizer.state[param]
    state["step"] += 3
    state["delivered_at"] += 3
    training.oracle.state[param]["t"] += 3
    training.oracle.state[param]["last"] += 3
    training.train()
    training.optimizer.state.clear()
    training.oracle.state.clear()
    assert training.train() == 1


@SOURCES
def test_gradients_are_not_kept(known, monkeypatch):
    training = Counted(known, monkeypatch)
    for density in (1, 1, 0.2, 0.2):
        training.draw(density)
        training.optimizer.step()
        held = [weakref.ref(param.grad) for param in training.params]
        for param in training.params:
            param.grad = None
        assert [each() for each in held if each() is not None] == []


def calls_of_a_step(count, known):
    """Calls of Python functions in the fifth step of so many parameters."""
    params = [nn.Parameter(torch.randn(9)) for _ in range(count)]
    training = Training(params, known=known)
    calls = []
    for step in range(5):
        training.draw(0.5)
        if step == 4:
            sys.setprofile(lambda _, event, __: calls.append(event))
        training.optimizer.step()
        sys.setprofile(None)
    return calls.count("call")


@SOURCES
def test_a_step_calls_no_more_functions_for_more_parameters(known):
    assert calls_of_a_step(8, known) == calls_of_a_step(80, known) > 0
