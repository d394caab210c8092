"""Momentum behind the hook: a dense run is SGD with momentum, a sparse one resumes."""

import os

import pytest
import torch

import thinwire
from tests.hooks.training import (
    batch,
    given_gradients,
    gradients_of,
    optimizer_of,
    step_once,
    wrap,
)
from tests.workers import pool

pytestmark = pytest.mark.processes

STEPS = 6
MOMENTUM = thinwire.Momentum(0.9)


def start(method="topk", kind="plain", **options):
    model = wrap(kind)
    state = thinwire.attach(model, method, feedback=MOMENTUM, **options)
    return model, state, optimizer_of(model)


def parameters_of(model):
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


def remembered(state):
    """This rank's entries of a state dict, copied: by kind, then by name."""
    (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
    kinds = {kind: held for kind, held in entries.items() if isinstance(held, dict)}
    return {
        kind: {name: tensor.clone() for name, tensor in held.items()}
        for kind, held in kinds.items()
    }


def train(group, method, options):
    model, state, optimizer = start(method, **options)
    for step in range(STEPS):
        step_once(model, optimizer, group.rank, step)
    state.check_replicas()
    return parameters_of(model)


def train_switched_off(group):
    os.environ["THINWIRE"] = "dense"
    try:
        return train(group, "topk", {})
    finally:
        del os.environ["THINWIRE"]


def train_plain_ddp(group):
    model = wrap()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        step_once(model, optimizer, group.rank, step)
    return parameters_of(model)


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("method", ["dense", "topk"])
def test_everything_delivered_is_sgd_with_momentum(method, scope):
    # A dense total of a sparse method: warm-up lasts longer than the run.
    options = {"scope": scope} | ({"warmup": 100} if method == "topk" else {})
    ours, ddp = pool(2).run(train, method, options), pool(2).run(train_plain_ddp)
    torch.testing.assert_close(ours[0], ddp[0])


def test_switching_compression_off_leaves_the_momentum():
    ours, ddp = pool(2).run(train_switched_off), pool(2).run(train_plain_ddp)
    torch.testing.assert_close(ours[0], ddp[0])


def interrupted(group, folder, at):
    model, state, optimizer = start()
    for step in range(at):
        step_once(model, optimizer, group.rank, step)
    saved = remembered(state)
    path = f"{folder}/{group.rank}"
    torch.save((model.module.state_dict(), state.state_dict()), path)

    model, state, optimizer = start()
    weights, thinwire_state = torch.load(path, weights_only=True)
    model.module.load_state_dict(weights)
    state.load_state_dict(thinwire_state)
    for step in range(at, STEPS):
        step_once(model, optimizer, group.rank, step)
    return saved, parameters_of(model)


@pytest.mark.parametrize("at", [1, 4])
def test_a_resumed_run_has_the_same_bits(tmp_path, at):
    whole = pool(2).run(train, "topk", {})
    for saved, parameters in pool(2).run(interrupted, str(tmp_path), at):
        assert set(saved) == {"residual", "momentum"}
        assert all(set(held) == set(parameters) for held in saved.values())
        assert any(tensor.any() for tensor in saved["momentum"].values())
        assert all(torch.equal(whole[0][n], p) for n, p in parameters.items())


def save_flushed(group, path):
    model, state, _ = start(kind="given")
    for step in range(2):
        model.zero_grad()
        model(given_gradients(group.rank, step)).backward()
    before = remembered(state)
    delivered = gradients_of(model)
    state.flush()
    if group.rank == 0:
        torch.save(state.state_dict(), path)
    return before, delivered, gradients_of(model), remembered(state)


def load_flushed(group, path):
    model, state, _ = start(kind="given")
    state.load_state_dict(torch.load(path, weights_only=True))
    loaded = remembered(state)
    model(given_gradients(group.rank, 2)).backward()
    return loaded, gradients_of(model)


def test_flush_delivers_the_residual_and_forgets_the_momentum(tmp_path):
    path = str(tmp_path / "state")
    ranks = pool(2).run(save_flushed, path)
    for before, delivered, flushed, after in ranks:
        assert all(tensor.any() for tensor in before["momentum"].values())
        for name, gradient in flushed.items():
            residual = sum(rank[0]["residual"][name] for rank in ranks) / 2
            torch.testing.assert_close(gradient, delivered[name] + residual)
        assert set(after) == {"residual", "momentum"}
        assert not any(t.any() for held in after.values() for t in held.values())
    # Rank 0's file serves every rank of any number.
    for size in (2, 3):
        ranks = pool(size).run(load_flushed, path)
        for loaded, gradients in ranks:
            assert not any(t.any() for held in loaded.values() for t in held.values())
            assert all(torch.equal(g, ranks[0][1][n]) for n, g in gradients.items())


def change_scale(group):
    """Velocity and residual in true units, with a loss scale that moves and without."""
    found = []
    for scales in ([1.0] * 4, [1024.0, 1024.0, 512.0, 2048.0]):
        model = wrap("plain")
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        scaler.scale(torch.ones(1))  # it makes its scale when first used
        state = thinwire.attach(model, "topk", feedback=MOMENTUM, grad_scaler=scaler)
        for step, scale in enumerate(scales):
            scaler.update(new_scale=scale)
            model.zero_grad()
            scaler.scale(model(batch(group.rank, step)).square().mean()).backward()
        vectors = remembered(state)
        found.append(
            {k: {n: t / scale for n, t in held.items()} for k, held in vectors.items()}
        )
    return found


def test_both_vectors_follow_the_loss_scale():
    for still, moving in pool(2).run(change_scale):
        for kind in ("residual", "momentum"):
            for name, tensor in still[kind].items():
                assert torch.equal(tensor, moving[kind][name])


def late_bad_step(group):
    """What is remembered before and after a pass whose last bucket turns out bad."""
    model = wrap("given", bucket_cap_mb=0.005)
    state = thinwire.attach(model, "topk", feedback=MOMENTUM)
    for step in range(4):
        model(given_gradients(group.rank, step)).backward()
        model.zero_grad()
    before = remembered(state)
    gradients = given_gradients(group.rank, 4)
    gradients["first"][7] = float("nan")
    model(gradients).backward()
    return before, remembered(state)


def test_a_bad_step_leaves_no_trace_in_either_vector():
    # "third" and "second" were delivered before "first" turned out bad.
    for before, after in pool(2).run(late_bad_step):
        for kind in ("residual", "momentum"):
            for name, tensor in before[kind].items():
                assert torch.equal(tensor, after[kind][name])
