"""The Trainer of Hugging Face transformers, with a callback."""

import pytest
import torch

import thinwire
from tests.integrations.launcher import launch, results
from tests.integrations.tasks import (
    BATCH,
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

pytestmark = framework("transformers")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, inputs, targets):
        return {"loss": loss_of(self.inner, inputs, targets)}


def examples(accumulate: int) -> list[dict[str, torch.Tensor]]:
    """What a Trainer gives to two ranks as the batches of the raw training."""
    found = []
    for number in range(STEPS * accumulate):
        for rank in range(2):
            inputs, targets = batch(rank, number)
            found += [
                {"inputs": inputs[i], "targets": targets[i]} for i in range(BATCH)
            ]
    return found


DEFAULTS = {
    "max_grad_norm": 0.0,
    "max_steps": STEPS,
    "ddp_find_unused_parameters": False,
}


def trainer_of(folder, callbacks, accumulate=1, **arguments):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        save_steps=SAVED,
        logging_steps=10,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **DEFAULTS | arguments,
    )
    return Trainer(
        Model(),
        arguments,
        train_dataset=examples(accumulate),
        optimizer_cls_and_kwargs=(
            thinwire.AdamW,
            {"lr": 1e-3, "weight_decay": 0.0},
        ),
        callbacks=callbacks,
    )


def train(folder, *, kill=0, resume=None, accumulate=1, options=None, **arguments):
    from transformers import TrainerCallback

    from thinwire.integrations.transformers import Thinwire

    class Killed(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            die_after(kill, state.global_step)

    attached = Thinwire("spardl", density=0.05, warn=False, **(options or {}))
    trainer = trainer_of(folder, [attached, Killed()], accumulate, **arguments)
    trainer.train(resume_from_checkpoint=resume)
    attached.state.check_replicas()
    return parameters_of(trainer.model)


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        ({}, {}),
        ({"ddp_find_unused_parameters": True}, {"find_unused": True}),
        ({"max_grad_norm": 0.05}, {"clip": 0.05}),
        (
            {"accumulate": 2, "bf16": True, "max_grad_norm": 0.05},
            {"accumulate": 2, "bf16": True, "clip": 0.05},
        ),
    ],
    ids=["plain", "unused parameters", "clipped", "accumulated, in bfloat16, clipped"],
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
    assert same(results(train, tmp_path, resume=True), wanted)
