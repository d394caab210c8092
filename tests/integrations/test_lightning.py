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
from thinwire import ConfigError, PeerError

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


DEFAULTS = {
    "devices": 2,
    "strategy": "ddp",
    "max_steps": STEPS,
    "logger": False,
    "enable_checkpointing": False,
}


def trainer_of(folder, callbacks, accumulate=1, **arguments):
    from lightning.pytorch import Trainer

    return Trainer(
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        default_root_dir=folder,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
        callbacks=callbacks,
        **DEFAULTS | arguments,
    )


class Numbers:
    """The numbers of batches; Lightning saves how many it has taken."""

    def __init__(self, count: int) -> None:
        self.count, self.taken = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        while self.taken < self.count:
            self.taken += 1
            yield torch.tensor([self.taken - 1])
        self.taken = 0

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, saved):
        self.taken = saved["taken"]


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
    trainer.fit(module, Numbers(STEPS * accumulate), ckpt_path=resume)
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


class Logged:
    """What a logger gets, on each rank."""

    def __init__(self) -> None:
        self.name, self.version, self.save_dir = "logged", 0, None
        self.entries = []

    def log_metrics(self, metrics, step):
        self.entries.append((step, dict(metrics)))

    def __getattr__(self, name):
        return lambda *_, **__: None


def logs_and_clipping(folder):
    """What is logged, and what becomes of the Trainer's clipping after an exception."""
    from lightning.pytorch import Callback

    from thinwire.integrations.lightning import Thinwire

    class Failing(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 25:
                raise RuntimeError("on purpose")

    attached, logged = Thinwire("topk", density=0.05, warn=False), Logged()
    trainer = trainer_of(
        folder, [attached, Failing()], gradient_clip_val=0.25, logger=logged
    )
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(module_of(), Numbers(STEPS))
    assert trainer.gradient_clip_val == 0.25
    # Other ranks may not have had the exception: nothing is gathered.
    assert attached.state_dict() == {}
    return [
        (step, metrics["thinwire/steps"])
        for step, metrics in logged.entries
        if "thinwire/steps" in metrics
    ]


def test_metrics_are_logged_and_clipping_is_given_back(tmp_path):
    found = results(logs_and_clipping, tmp_path)
    assert found == [[(10, 10.0), (20, 20.0)]] * 2


def clipped_by_value(folder):
    with pytest.raises(ConfigError, match="Use 'norm'"):
        train(folder, gradient_clip_val=0.1, gradient_clip_algorithm="value")


def test_clipping_by_value_is_refused(tmp_path):
    results(clipped_by_value, tmp_path)


def resumed_without(folder):
    """Checkpoints of a run without the callback, resumed with it."""
    import warnings

    from thinwire.integrations.lightning import Thinwire

    trainer = trainer_of(folder, [], max_steps=SAVED)
    trainer.fit(module_of(), Numbers(STEPS))
    trainer.save_checkpoint(folder / "dense.ckpt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attached = Thinwire("topk", density=0.05)
        trainer_of(folder, [attached]).fit(
            module_of(), Numbers(STEPS), ckpt_path=folder / "dense.ckpt"
        )
    return [
        str(each.message)
        for each in caught
        if "nothing was loaded" in str(each.message)
    ]


def test_resuming_without_residuals_warns_once(tmp_path):
    leads, follows = results(resumed_without, tmp_path)
    assert len(leads) == 1
    assert not follows


def alone(folder):
    train(folder, devices=1, strategy="auto", max_steps=5)


def test_one_process_trains_without_it(tmp_path):
    results(alone, tmp_path, size=1)
