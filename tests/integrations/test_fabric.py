"""Lightning Fabric: its wrapped model, its wrapped optimizer, its save and load."""

import pytest

import thinwire
from tests.integrations.launcher import results
from tests.integrations.tasks import (
    SAVED,
    STEPS,
    adamw,
    batch,
    framework,
    loss_of,
    make_model,
    parameters_of,
    raw,
    same,
    sgd,
)

pytestmark = framework("lightning")


def train(folder, *, start=0, stop=STEPS, optimizer_of=adamw, before=False):
    """Train from `start`, where a checkpoint was saved, to `stop`, and save one.

    The optimizer is made `before` the model is wrapped, or given the state after that.
    """
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    module = make_model()
    if before:
        model, optimizer = fabric.setup(module, optimizer_of(module))
        state = thinwire.attach(model, "spardl", density=0.05, warn=False)
    else:
        model = fabric.setup(module)
        state = thinwire.attach(model, "spardl", density=0.05, warn=False)
        optimizer = fabric.setup_optimizers(optimizer_of(model, state))
    saved = {"model": model, "optimizer": optimizer, "thinwire": state.all_ranks}
    if start:
        fabric.load(folder / "saved.ckpt", saved)
    for step in range(start, stop):
        loss = loss_of(model, *batch(fabric.global_rank, step))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if stop < STEPS:
        fabric.save(folder / "saved.ckpt", saved)
    return parameters_of(model)


@pytest.mark.parametrize(
    ("optimizer_of", "before"), [(sgd, False), (adamw, False), (adamw, True)]
)
def test_a_run_that_is_stopped_and_resumed_is_raw_ddp(tmp_path, optimizer_of, before):
    wanted = results(raw, "spardl", optimizer_of, density=0.05)
    options = {"optimizer_of": optimizer_of, "before": before}
    results(train, tmp_path, stop=SAVED, **options)
    assert same(results(train, tmp_path, start=SAVED, **options), wanted)
    assert same(results(train, tmp_path, **options), wanted)
