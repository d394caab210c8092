"""One process and no DistributedDataParallel: the same script, nothing reduced."""

import json
import warnings

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import thinwire
from tests.hooks.training import (
    SIZES,
    given_gradients,
    make_model,
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import pool
from thinwire.errors import ConfigError

METHODS = ["topk", "spardl", "dense", "auto", "gs-sgd"]


def trained(method, kind="plain", make=None, *, clip=None, **options):
    """Losses and parameters of 5 steps; plain torch with method None."""
    model = make_model(kind)
    state = None
    if method is not None:
        state = thinwire.attach(model, method, clip=clip, **options)
    optimizer = (make or sgd)(model, state)
    if clip is None or method is not None:
        losses = [step_once(model, optimizer, 0, step) for step in range(5)]
    else:
        losses = [clipped_step(model, optimizer, clip, step) for step in range(5)]
    if state is not None:
        state.check_replicas()
    return losses, [p.detach().clone() for p in model.parameters()], state


def clipped_step(model, optimizer, clip, step):
    with pytest.MonkeyPatch.context() as patch:
        step_of = optimizer.step

        def clip_first():
            clip_grad_norm_(model.parameters(), clip)
            step_of()

        patch.setattr(optimizer, "step", clip_first)
        return step_once(model, optimizer, 0, step)


def sgd(model, _state):
    return optimizer_of(model)


def adamw(model, state):
    if state is None:
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return thinwire.AdamW(model.parameters(), lr=0.01, state=state)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_training_is_what_it_is_without(method, make, clip):
    losses, parameters, _ = trained(method, make=make, clip=clip)
    expected, known, _ = trained(None, make=make, clip=clip)
    if clip is None:
        assert losses == expected
        assert all(map(torch.equal, parameters, known))
    else:  # torch adds up the norms in another order
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(parameters, known)
        assert losses != trained(None, make=make)[0]


def test_all_that_a_script_calls_works(tmp_path):
    losses, _, state = trained("topk", density=0.02, warmup="auto")
    assert isinstance(state, thinwire.State)
    assert losses
    state.save(tmp_path / "saved", {"step": 5})
    assert state.load(tmp_path / "saved")["step"] == 5
    assert state.load(tmp_path / "none", required=False) is None
    state.load_state_dict(state.state_dict())
    state.all_ranks.load_state_dict(state.all_ranks.state_dict())
    state.flush()
    state.density = 0.5
    assert state.density == 0.5
    assert state.deliveries().units == ()
    found = state.metrics()
    assert found["bytes_sent"] == 0
    assert found["kept_density"] == 1
    json.dumps(found)
    state.close()
    state.close()
    with pytest.raises(ConfigError, match="closed"):
        state.metrics()


def test_a_closed_state_clips_no_more():
    model = make_model()
    with thinwire.attach(model, "topk", clip=1e-3):
        step_once(model, optimizer_of(model), 0, 0)
    clipped = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    step_once(model, optimizer_of(model), 0, 0)
    free = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert clipped <= 1e-3 < free


@pytest.mark.parametrize("kind", ["words", "rows", "tied"])
def test_other_models(kind):
    losses, parameters, _ = trained("topk", kind, sgd)
    expected, known, _ = trained(None, kind, sgd)
    assert losses == expected
    assert all(map(torch.equal, parameters, known))


def test_a_momentum_that_is_not_applied_is_said():
    with pytest.warns(UserWarning, match="momentum"):
        thinwire.attach(make_model(), "topk", feedback="momentum")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thinwire.attach(make_model(), "topk", feedback="momentum", warn=False)
        thinwire.attach(make_model(), "topk")


@pytest.mark.parametrize("options", [{"density": 0.0}, {"denisty": 1}, {"clip": -1.0}])
def test_wrong_options_are_refused_here_too(options):
    with pytest.raises(ConfigError):
        thinwire.attach(make_model(), "topk", **options)


def test_options_that_need_more_ranks_are_not():
    thinwire.attach(make_model(), "spardl", teams=4)


@pytest.mark.parametrize("size", ["2", "64"])
def test_a_launcher_without_init_process_group_is_refused(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is {size}.*init_process_group"):
        thinwire.attach(make_model(), "topk")


def save(group, folder):
    model = wrap("given")
    state = thinwire.attach(model, "topk")
    for step in range(3):
        model(given_gradients(group.rank, step)).backward()
    state.save(folder, {"step": 3})
    return residual_of(state)


def load(group, folder):
    state = thinwire.attach(wrap("given"), "topk")
    state.load(folder)
    return residual_of(state)


@pytest.mark.processes
def test_residuals_of_more_ranks_are_kept_flushed_and_saved(tmp_path):
    folder, again = str(tmp_path / "saved"), str(tmp_path / "again")
    saved = pool(2).run(save, folder)
    means = {name: sum(each[name] for each in saved) / 2 for name in SIZES}
    assert all(mean.count_nonzero() for mean in means.values())
    model = make_model("given")
    state = thinwire.attach(model, "topk")
    with pytest.warns(UserWarning, match=r"state.flush\(\)"):
        assert state.load(folder)["step"] == 3
    model(given_gradients(0, 9)).backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    state.save(again)
    state.flush()
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, plain[name] + means[name])
    assert not any(map(torch.any, residual_of(state).values()))
    for name in SIZES:
        loaded = [each[name] for each in pool(2).run(load, again)]
        assert torch.equal(sum(loaded) / 2, means[name])
    quiet = thinwire.attach(make_model("given"), "topk")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.load(folder, residual="drop")


def test_a_flush_after_a_bad_backward_loses_nothing():
    model = make_model("given")
    state = thinwire.attach(model, "topk", warn=False)
    kept = {name: torch.ones(size) for name, size in SIZES.items()}
    entries = state.state_dict().pop("rank 0 of 1")
    entries |= {"flushed": False, "residual": kept}
    state.load_state_dict({"version": 1, "rank 0 of 1": entries})
    model(given_gradients(0, 0)).backward()
    first, *_ = model.parameters()
    first.grad.view(-1)[0] = torch.inf
    state.flush()
    # As where ranks drop such a step: the optimizer gets the residual alone.
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, kept[name])


def in_a_group_of_one(group):
    assert group.size == 1
    return trained("topk")[0]


@pytest.mark.processes
def test_a_group_of_one_needs_no_wrapping():
    assert pool(1).run(in_a_group_of_one) == [trained(None)[0]]
