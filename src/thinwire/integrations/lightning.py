"""A callback for the Trainer of Lightning.

    from thinwire.integrations.lightning import Thinwire

    trainer = Trainer(strategy="ddp", ..., callbacks=[Thinwire("spardl", density=0.01)])

It attaches to the wrapped model when fitting begins. A checkpoint has what all ranks
have not delivered yet, gathered when it is saved: Lightning keeps rank 0's file only.
"""

from typing import Any, Unpack

from lightning.pytorch import Callback, LightningModule, Trainer

from thinwire.errors import ConfigError
from thinwire.hooks.state import State
from thinwire.integrations.attachment import Attachment, AttachOptions


class Thinwire(Callback):
    """Reduces the gradients of a Lightning model with a named method.

    The Trainer's `gradient_clip_val` becomes the `clip` of `attach`, unless `clip` is
    given, and is None while fitting: clipped after the backward pass, sums of many
    steps would be cut for good.

    Args:
        method: What `thinwire methods` lists.
        **options: As for `attach`.

    """

    def __init__(self, method: str, **options: Unpack[AttachOptions]) -> None:
        self._attachment = Attachment(method, options)
        self._saved: dict[str, Any] = {}
        self._clip: float | None = None
        self._logged, self._failed = -1, False

    @property
    def state(self) -> State:
        """What `attach` returned when fitting began."""
        return self._attachment.state

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget what was loaded for another purpose."""
        self._saved, self._logged, self._failed = {}, -1, False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and go on from the checkpoint that is resumed."""
        clip = trainer.gradient_clip_val
        if clip and trainer.gradient_clip_algorithm == "value":
            raise ConfigError(
                "gradient_clip_algorithm is 'value': after the backward pass that "
                "would cut sums of many steps for good, and thinwire clips norms only. "
                "Use 'norm', or leave gradient_clip_val out"
            )
        state = self._attachment.begin(
            trainer.strategy.model,
            clip=clip,
            grad_scaler=getattr(trainer.precision_plugin, "scaler", None),
        )
        self._clip, trainer.gradient_clip_val = clip, None
        if self._saved:
            state.all_ranks.load_state_dict(self._saved)
            self._saved = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any
    ) -> None:
        """Log the metrics of this rank, as often as Lightning logs."""
        step = trainer.global_step
        if step != self._logged and step % trainer.log_every_n_steps == 0:
            self._logged = step
            metrics = self._attachment.metrics()
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the Trainer its clipping back."""
        self._give_clip_back(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the Trainer its clipping back; gather nothing any more."""
        self._give_clip_back(trainer)
        self._failed = True

    def _give_clip_back(self, trainer: Trainer) -> None:
        if self._clip is not None:
            trainer.gradient_clip_val, self._clip = self._clip, None

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have not delivered; all of them call this together.

        After an exception, which other ranks may not have had, there is nothing.
        """
        if self._failed or not self._attachment.begun:
            return {}
        return self.state.all_ranks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what was saved until there is a model."""
        self._saved = state_dict
