"""A callback for the Trainer of Hugging Face transformers.

    from thinwire.integrations.transformers import Thinwire

    trainer = Trainer(model, args, ..., callbacks=[Thinwire("spardl", density=0.01)])

It attaches to the wrapped model when training begins. Each checkpoint gets a folder
`thinwire` with what every rank has not delivered yet.
"""

import inspect
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Unpack

from accelerate import Accelerator
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from thinwire.errors import ConfigError
from thinwire.hooks.state import State
from thinwire.integrations.attachment import Attachment, AttachOptions

FOLDER = "thinwire"


class Thinwire(TrainerCallback):
    """Reduces the gradients of a Trainer's model with a named method.

    The Trainer's `max_grad_norm` becomes the `clip` of `attach`, unless `clip` is
    given: clipped after the backward pass, sums of many steps would be cut for good.
    The Trainer then measures the norm and clips nothing.

    Args:
        method: What `thinwire methods` lists.
        **options: As for `attach`.

    """

    def __init__(self, method: str, **options: Unpack[AttachOptions]) -> None:
        self._attachment = Attachment(method, options)

    @property
    def state(self) -> State:
        """What `attach` returned when training began."""
        return self._attachment.state

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Attach, and go on from what was saved with the checkpoint that is resumed."""
        trainer, checkpoint = _calling_trainer()
        accelerator = trainer.accelerator
        attached = self._attachment.begin(
            trainer.model_wrapped,
            clip=args.max_grad_norm,
            grad_scaler=accelerator.scaler,
        )
        if "clip_grad_norm_" not in vars(accelerator):
            attached.on_close(_measure_only(accelerator))
        _move_before_loggers(self, trainer)
        if checkpoint is not None:
            attached.load(Path(checkpoint) / FOLDER, required=False)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Save into the checkpoint, on all ranks together."""
        if not args.save_only_model:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.state.save(checkpoint / FOLDER)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add the metrics of this rank to what is logged of training."""
        if logs is not None and "loss" in logs:
            metrics = self._attachment.metrics()
            logs.update(metrics)
            state.log_history[-1].update(metrics)


def _calling_trainer() -> tuple[Trainer, str | None]:
    """The Trainer that calls a callback, and the checkpoint that it resumes.

    It gives neither to its callbacks.
    """
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals
        if isinstance(found.get("self"), Trainer) and "resume_from_checkpoint" in found:
            return found["self"], found["resume_from_checkpoint"]
        frame = frame.f_back
    raise ConfigError(
        "no Trainer called this callback: give it to Trainer(callbacks=[...])"
    )


def _measure_only(accelerator: Accelerator) -> partial[None]:
    """Let an accelerator's clipping measure the norm only; returns what undoes it."""
    clip = accelerator.clip_grad_norm_

    def measure(parameters: Any, max_norm: float, norm_type: int = 2) -> Any:
        return clip(parameters, inf, norm_type)

    accelerator.clip_grad_norm_ = measure
    return partial(delattr, accelerator, "clip_grad_norm_")


def _move_before_loggers(callback: TrainerCallback, trainer: Trainer) -> None:
    """Make a callback the first one, so that loggers see what it adds."""
    callbacks = trainer.callback_handler.callbacks
    callbacks.remove(callback)
    callbacks.insert(0, callback)
