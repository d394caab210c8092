"""Accelerate, with the state of all ranks in its checkpoints."""

import os

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.integrations.launcher import launch, results
from tests.integrations.tasks import (
    KILLED,
    SAVED,
    STEPS,
    adamw,
    batch,
    die_after,
    framework,
    loss_of,
    make_model,
    parameters_of,
    raw,
    same,
    sgd,
)
from thinwire import ConfigError, PeerError

pytestmark = framework("accelerate")


def train(folder, *, kill=0, resume=False, method="spardl", optimizer_of=adamw):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(make_model())
    state = thinwire.attach(model, method, density=0.05, warn=False)
    optimizer = accelerator.prepare(optimizer_of(model, state))
    accelerator.register_for_checkpointing(state.all_ranks)
    if resume:
        accelerator.load_state(f"{folder}/saved")
    for step in range(SAVED if resume else 0, STEPS):
        loss = loss_of(model, *batch(accelerator.process_index, step))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if kill and step + 1 == SAVED:
            accelerator.save_state(f"{folder}/saved")
        die_after(kill, step + 1)
    return parameters_of(model)


@pytest.mark.parametrize("optimizer_of", [sgd, adamw])
def test_training_is_that_of_raw_ddp(tmp_path, optimizer_of):
    wanted = results(raw, "spardl", optimizer_of, density=0.05)
    found = results(train, tmp_path, optimizer_of=optimizer_of)
    assert same(found, wanted)


def test_a_killed_run_resumes_to_the_bit(tmp_path):
    wanted = results(raw, "spardl", adamw, density=0.05)
    survivor, victim = launch(train, tmp_path, kill=KILLED)
    assert victim.exitcode == -9
    assert isinstance(survivor.error, PeerError)
    assert survivor.error.ranks == (1,)
    assert same(results(train, tmp_path, resume=True), wanted)


def resumed_alone(folder):
    """A script on a laptop goes on from two processes: what a flush delivers."""
    from accelerate import Accelerator

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(make_model())
    state = thinwire.attach(model, "spardl", density=0.05, warn=False)
    optimizer = accelerator.prepare(adamw(model, state))
    accelerator.register_for_checkpointing(state.all_ranks)
    accelerator.load_state(f"{folder}/saved")
    loss = loss_of(model, *batch(0, 0))
    accelerator.backward(loss)
    optimizer.zero_grad(set_to_none=False)
    state.flush()
    assert not isinstance(model, DistributedDataParallel)
    return {name: p.grad.clone() for name, p in state.parameters.items()}


def test_one_process_goes_on_from_two_and_nothing_is_lost(tmp_path):
    launch(train, tmp_path, kill=KILLED)
    (delivered,) = results(resumed_alone, tmp_path, size=1)
    saved = torch.load(tmp_path / "saved" / "custom_checkpoint_0.pkl")
    residuals = [saved[f"rank {rank} of 2"]["residual"] for rank in range(2)]
    for name, grad in delivered.items():
        mean = (residuals[0][name].double() + residuals[1][name].double()) / 2
        assert mean.count_nonzero() > 0
        torch.testing.assert_close(grad.double(), mean, rtol=1e-6, atol=1e-6)


def unprepared():
    from accelerate import Accelerator

    Accelerator(cpu=True)
    with pytest.raises(ConfigError) as caught:
        thinwire.attach(make_model(), "spardl")
    return str(caught.value)


def test_a_model_that_was_not_prepared_is_refused():
    for message in results(unprepared):
        assert "wrap it first" in message
