"""A run's curves for TensorBoard: loss, metric, bytes and residual norm per epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.train.spec import Spec
from thinwire.errors import ConfigError


class TensorBoard:
    """A `Log` that writes event files into a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "TensorBoard is not installed: pip install 'thinwire[train]' (or "
                "tensorboard alone), or leave out --tensorboard"
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def begin(self, spec: Spec, steps: int, done: int) -> None:
        self._writer.add_text("run", f"`{spec.key}`", done)

    def step(self, number: int) -> None:
        return None

    def epoch(self, number: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "checksum":
                self._writer.add_scalar(name, value, number)
        self._writer.flush()
