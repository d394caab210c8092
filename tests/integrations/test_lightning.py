"""Lightning's Trainer, with a callback."""

import pytest
import torch

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
)
from thinwire import PeerError

pytestmark = framework("lightning")


def module_of(kill=0):
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

        def training_step(self, numbers):
            inputs, targets = batch(self.global_rank, int(numbers[0]))
            return loss_of(self.inner, inputs, targets)

        def on_train_batch_end(self, *_):
            die_after(kill, self.global_step)

        def configure_optimizers(self):
            return adamw(self.inner)

    return Module()


def trainer_of(folder, callbacks, accumulate=1, **arguments):
    from lightning.pytorch import Trainer

    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=accumulate,
        default_root_dir=folder,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
        callbacks=callbacks,
        **{"logger": False, "enable_checkpointing": False} | arguments,
    )


def numbers(accumulate=1):
    """Each rank's batches are those of the raw training, by number."""
    return torch.utils.data.DataLoader(list(range(STEPS * accumulate)))


def train(folder, *, kill=0, resume=None, accumulate=1, options=None, **arguments):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from thinwire.integrations.lightning import Thinwire

    attached = Thinwire("spardl", density=0.05, warn=False, **(options or {}))
    callbacks = [attached]
    if kill:
        callbacks.append(
            ModelCheckpoint(
                folder, "{step}", every_n_train_steps=SAVED, save_weights_only=False
            )
        )
        arguments["enable_checkpointing"] = True
    trainer = trainer_of(folder, callbacks, accumulate, **arguments)
    module = module_of(kill)
    trainer.fit(module, numbers(accumulate), ckpt_path=resume)
    attached.state.check_replicas()
    return parameters_of(module)


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        ({}, {}),
        (
            {"accumulate": 2, "precision": "bf16-mixed", "gradient_clip_val": 0.05},
            {"accumulate": 2, "bf16": True, "clip": 0.05},
        ),
    ],
    ids=["plain", "accumulated, in bfloat16, clipped"],
)
def test_training_is_that_of_raw_ddp(tmp_path, arguments, rest):
    wanted = results(raw, "spardl", adamw, density=0.05, **rest)
    found = results(train, tmp_path, **arguments)
    assert same(found, wanted)


def test_a_killed_run_resumes_to_the_bit(tmp_path):
    wanted = results(raw, "spardl", adamw, density=0.05)
    survivor, victim = launch(train, tmp_path, kill=KILLED)
    assert victim.exitcode == -9
    assert isinstance(survivor.error, PeerError)
    assert survivor.error.ranks == (1,)
    (saved,) = tmp_path.glob("*.ckpt")
    assert same(results(train, tmp_path, resume=str(saved)), wanted)
