"""thinwire.AdamW on given gradients: the rule, and torch.optim.AdamW where all came."""

import copy
import io

import pytest
import torch
from torch import nn

import thinwire
from tests.optim.given import Training, assert_same, follow, groups_of, parameters
from tests.optim.oracle import Oracle
from thinwire.errors import ConfigError

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16]
)
SOURCES = pytest.mark.parametrize("known", [False, True], ids=["grad", "state"])


@DTYPES
@SOURCES
def test_the_rule(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    # Waits beyond the end of the second group's table, and several due decays.
    follow(training, oracle, [0.1] * 100 + [0.0] * 230 + [0.1] * 3)
    assert oracle.checked == 333 * len(training.params)


@DTYPES
@SOURCES
def test_densities_change(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    follow(training, oracle, [1, 1, 0.5, 0.1, 0, 0.1, 1, 0.1, 0.1, 1, 1, 1, 0.3])


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("known", [False, True])
def test_with_everything_delivered_it_is_torchs_to_the_bit(how, known):
    training = Training(parameters(), known=known, **how)
    own = parameters()
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    theirs = torch.optim.AdamW(groups_of(own), **options, **how)
    for _ in range(70):
        training.draw(1)
        for mine, other in zip(training.params, own, strict=True):
            other.grad = mine.grad.clone()
        training.optimizer.step()
        theirs.step()
    assert_same(training.params, own)
    mine, wanted = training.optimizer.state_dict(), theirs.state_dict()
    for state in mine["state"].values():
        assert state.pop("pending_decay") is None
        assert (state.pop("delivered_at") == 70).all()
    assert str(mine) == str(wanted)


@DTYPES
def test_with_and_without_a_state_the_bits_are_the_same(dtype):
    both = [Training(parameters(dtype), known=known) for known in (False, True)]
    for density in [0.1] * 70 + [0.5, 0.0, 0.1]:
        for each in both:
            each.draw(density)
            each.optimizer.step()
    assert_same(both[0].values(), both[1].values())


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def resumed(training, how):
    """The same training with parameters and an optimizer of its own."""
    if how == "copy":
        return copy.deepcopy(training)
    options = {"lr": 7.0, "betas": (0.3, 0.3), "weight_decay": 7.0}
    other = Training(
        parameters(training.params[0].dtype),
        known=training.source is not None,
        **options,
    )
    other.random.set_state(training.random.get_state())
    for mine, theirs in zip(other.params, training.params, strict=True):
        mine.data.copy_(theirs)
    state = training.optimizer.state_dict()
    if how == "file":
        state = saved_and_loaded(training.optimizer)
    other.optimizer.load_state_dict(state)
    return other


@DTYPES
@SOURCES
@pytest.mark.parametrize("how", ["dict", "file", "copy"])
@pytest.mark.parametrize("at", [0, 3, 70])
def test_a_resumed_training_goes_on_to_the_bit(dtype, known, how, at):
    training = Training(parameters(dtype), known=known)
    for step in range(at):
        training.draw(1 if step < 2 else 0.1)
        training.optimizer.step()
    again = resumed(training, how)
    for step in range(70):
        for each in (training, again):
            each.draw(0.1 if step < 68 else 1)
            each.optimizer.step()
    assert_same(training.values(), again.values())


@DTYPES
@SOURCES
def test_a_checkpoint_of_torchs_is_continued(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    single = [nn.Parameter(p.detach().float()) for p in training.params]
    theirs = torch.optim.AdamW(groups_of(single), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        masks = training.draw(1)
        for mine, other in zip(training.params, single, strict=True):
            other.grad = mine.grad.float()
        oracle.step(masks)
        theirs.step()
    training.optimizer.load_state_dict(theirs.state_dict())
    oracle.state = {
        mine: {
            "t": 3,
            "decays": 0,
            "m": theirs.state[other]["exp_avg"].double(),
            "v": theirs.state[other]["exp_avg_sq"].double(),
            "last": torch.full(mine.shape, 3.0, dtype=torch.float64),
            "decay": torch.ones(mine.shape, dtype=torch.float64),
        }
        for mine, other in zip(training.params, single, strict=True)
    }
    follow(training, oracle, [0.1] * 5)


def test_a_state_that_was_cleared_starts_again():
    training = Training(parameters(), known=True)
    follow(training, Oracle(training.optimizer), [0.1] * 5)
    training.optimizer.state.clear()
    follow(training, Oracle(training.optimizer), [0.1] * 5)


@SOURCES
def test_rates_and_betas_that_change_and_tensors(known):
    training = Training(parameters(), known=known, lr=torch.tensor(1e-2))
    oracle = Oracle(training.optimizer)
    for step in range(30):
        for group in training.optimizer.param_groups:
            group["betas"] = (0.8 + step / 200, torch.tensor(0.95))
            group["weight_decay"] = 0.1 * (step % 3)
            group["lr"] = group["lr"] * 0.9 if step != 20 else 0.0
        follow(training, oracle, [0.2])


@SOURCES
def test_a_step_that_is_not_made_is_none(known):
    """Skipped by a scaler or by the user: the parameter has not waited."""
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        if step % 3:
            oracle.step(masks)
            training.optimizer.step()
            oracle.check()


def test_a_step_that_is_not_finite_is_none():
    training = Training(parameters(), known=True)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        before = training.values()
        if step % 3 == 0:
            training.source.told.finite = False
            for param in training.params:
                param.grad.fill_(float("nan"))
            training.optimizer.step()
            assert_same(training.params, before)
        else:
            oracle.step(masks)
            training.optimizer.step()
            oracle.check()


@SOURCES
@pytest.mark.parametrize("to_none", [False, True])
def test_a_parameter_without_a_gradient(known, to_none):
    """Without one there is no step for it, as in torch; with zeros it waits."""
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        unused = training.params[step % 3]
        masks[unused] = torch.zeros_like(masks[unused])
        training.deliver(masks, whole=False)
        unused.grad = None if to_none else torch.zeros_like(unused)
        oracle.step(masks)
        training.optimizer.step()
        oracle.check()


@SOURCES
def test_gradients_that_are_scaled_after_backward(known):
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(1))
    applied = 0
    for step in range(20):
        training.draw(0.2)
        if step == 7:
            training.params[0].grad[0, 0] = float("inf")
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.params, 0.01)
        before = [int(s["step"]) for s in training.optimizer.state.values()]
        if step != 7:
            oracle.step()
        scaler.step(training.optimizer)
        scaler.update()
        after = [int(s["step"]) for s in training.optimizer.state.values()]
        applied += before != after
        if step != 7:
            oracle.check()
    assert applied == 19
    assert scaler.get_scale() == 32.0


def test_autograd_sees_that_parameters_have_changed():
    """As with any optimizer: else a graph that is used later gives wrong gradients."""
    for known in (False, True):
        training = Training(parameters(), known=known)
        training.draw(0.1)
        uses = [(param * param).sum() for param in training.params]
        training.optimizer.step()
        for each in uses:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                each.backward()


def test_closures_and_schedulers():
    model = nn.Linear(5, 3)
    optimizer = thinwire.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 5)).square().mean()
        loss.backward()
        return loss.detach()

    losses = []
    for _ in range(29):
        losses.append(float(optimizer.step(closure)))
        scheduler.step()
    assert losses[-1] < losses[0] / 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"amsgrad": True}, "amsgrad is True"),
        ({"capturable": True}, "capturable is True"),
        ({"differentiable": True}, "differentiable is True"),
    ],
)
def test_what_it_refuses(options, said):
    with pytest.raises(ConfigError, match=said):
        thinwire.AdamW(parameters(), **options)
    plain = parameters()
    saved = torch.optim.AdamW(plain, **options).state_dict()
    with pytest.raises(ConfigError, match=said):
        thinwire.AdamW(plain).load_state_dict(saved)


def test_other_dtypes_are_refused():
    with pytest.raises(ConfigError, match="float64"):
        thinwire.AdamW([nn.Parameter(torch.zeros(3, dtype=torch.float64))])
