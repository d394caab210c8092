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
from thinwire import ConfigError, PeerError

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


def logs_and_clipping(folder):
    """What is logged; the bounds that the Trainer clips with, while and afterwards."""
    from transformers import TrainerCallback

    from thinwire.integrations.transformers import Thinwire

    seen_logs = []

    class Seen(TrainerCallback):
        def on_log(self, args, state, control, logs, **_):
            seen_logs.append(dict(logs))

        def on_step_end(self, args, state, control, **_):
            if state.global_step == 15:
                raise RuntimeError("on purpose")

    attached, seen = Thinwire("topk", density=0.05, warn=False), Seen()
    trainer = trainer_of(folder, [seen, attached], max_grad_norm=0.25, max_steps=20)
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.train()
    assert trainer.args.max_grad_norm == 0.25
    # The same wrapped model, and the same state.
    state = attached.state
    trainer.remove_callback(seen)
    trainer.train()
    assert attached.state is state
    clip = trainer.accelerator.clip_grad_norm_
    weight = trainer.model.inner[0].weight
    weight.grad = torch.ones_like(weight)
    norm = clip(trainer.model.parameters(), 0.25)
    assert float(norm) == float(weight.grad.norm()) > 0.25
    state.close()
    clip = trainer.accelerator.clip_grad_norm_
    clip(trainer.model.parameters(), 0.25)
    assert float(weight.grad.norm()) < 0.26
    return seen_logs, trainer.state.log_history


def test_metrics_are_logged_and_clipping_is_given_back(tmp_path):
    for logs, history in results(logs_and_clipping, tmp_path):
        (first,) = logs
        assert first["thinwire/steps"] == 10.0
        assert first["thinwire/bytes_sent"] > 0.0
        assert [entry.get("thinwire/steps") for entry in history] == [25.0, 35.0, None]


def resumed_without(folder):
    """Checkpoints of a run without the callback, resumed with it."""
    import warnings

    from thinwire.integrations.transformers import Thinwire

    trainer_of(folder, [], max_steps=SAVED).train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attached = Thinwire("topk", density=0.05)
        trainer_of(folder, [attached]).train(resume_from_checkpoint=True)
    return [
        str(each.message)
        for each in caught
        if "nothing was loaded" in str(each.message)
    ]


def test_resuming_without_residuals_warns_once(tmp_path):
    leads, follows = results(resumed_without, tmp_path)
    assert len(leads) == 1
    assert not follows


def called_by_hand():
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from thinwire.integrations.transformers import Thinwire

    with pytest.raises(ConfigError, match=r"callbacks=\[...\]"):
        Thinwire("topk").on_train_begin(
            TrainingArguments(use_cpu=True), TrainerState(), TrainerControl()
        )


def test_only_a_trainer_may_call_it():
    results(called_by_hand, size=1)


def alone(folder):
    return train(folder, max_steps=5)


def test_one_process_trains_without_it(tmp_path):
    results(alone, tmp_path, size=1)


def test_the_checkpoint_has_a_file_of_each_rank(tmp_path):
    results(train, tmp_path)
    saved = tmp_path / "run" / f"checkpoint-{SAVED}" / "thinwire"
    names = {path.name for path in saved.glob("save-*/*")}
    assert names >= {"rank-0-of-2.pt", "rank-1-of-2.pt"}
