"""The checkpoint of a run: a resumed run equals an uninterrupted one."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.train.spec import Spec
from experiments.train.workers import Workers
from thinwire.errors import ConfigError
from thinwire.version import __version__

_SAVE_EVERY = 60.0  # seconds between checkpoints


@dataclass(slots=True)
class History:
    """The figures at the end of every epoch so far, and the loss of every step."""

    loss: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)
    bytes_per_step: list[float] = field(default_factory=list)
    busiest_bytes_per_step: list[float] = field(default_factory=list)
    rounds_per_step: list[float] = field(default_factory=list)
    residual_norm: list[float] = field(default_factory=list)
    gradient_norm: list[float | None] = field(default_factory=list)
    mean_gradient_norm: list[float | None] = field(default_factory=list)
    checksum: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    step_loss: list[float] = field(default_factory=list)  # to four digits

    def __post_init__(self) -> None:
        # Checkpoints of before they were recorded go on without them.
        for norms in (self.gradient_norm, self.mean_gradient_norm):
            norms[:0] = [None] * (self.epochs - len(norms))

    @property
    def epochs(self) -> int:
        """How many are over."""
        return len(self.metric)

    def last(self) -> dict[str, float]:
        """The figures of the last epoch that are known, by name."""
        ends = {name: held[-1] for name, held in asdict(self).items() if held}
        return {name: float(end) for name, end in ends.items() if end is not None}


class RunCheckpoint:
    """Writes and reads the checkpoint of one run: whole or not at all."""

    def __init__(
        self,
        path: Path | None,
        spec: Spec,
        workers: Workers,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._path, self._spec = path, spec
        self._workers, self._optimizer = workers, optimizer
        self._saved = time.monotonic()
        if path is not None:
            workers.check_savable()

    def resume(self) -> History:
        """Go on from the checkpoint if there is one; what happened before it."""
        if self._path is None or not self._path.exists():
            return History()
        held = _loaded(self._path)
        if held["key"] != self._spec.key:
            raise ConfigError(
                f"{self._path} belongs to another run: {held['key']}. Name another "
                "file, or remove this one"
            )
        self._workers.model.load_state_dict(held["model"])
        self._optimizer.load_state_dict(held["optimizer"])
        self._workers.load_state_dict(held["workers"])
        return History(**held["history"])

    def save_if_due(self, history: History) -> None:
        due = time.monotonic() - self._saved > _SAVE_EVERY
        if self._path is not None and self._workers.agree(due):
            self.save(history)

    def save(self, history: History) -> None:
        """Write beside the old one, then put it in its place."""
        self._saved = time.monotonic()
        if self._path is None:
            return
        held = {
            "key": self._spec.key,
            "version": __version__,
            "model": self._workers.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "workers": self._workers.state_dict(),
            "history": asdict(history),
        }
        if self._workers.leads:
            written(held, self._path)


def written(held: Mapping[str, Any], path: Path) -> None:
    """Write a file of tensors: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(held, beside)
    beside.replace(path)


def _loaded(path: Path) -> dict[str, Any]:
    try:
        held: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle may raise anything
        raise ConfigError(
            f"{path} is no checkpoint that can be read: {error}. Remove it to start "
            "the run anew"
        ) from error
    return held
