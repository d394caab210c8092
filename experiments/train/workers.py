"""The contract of workers: P gradients in, their mean in `.grad`, however they run."""

import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.train.health import Gradients


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What every rank has sent so far, and its residual norm, in order of rank.

    `rounds` are the leader's; `gradients` are known of virtual workers alone.
    """

    sent: tuple[float, ...]
    residual: tuple[float, ...]
    rounds: float = 0.0
    gradients: Gradients | None = None


class Workers(Protocol):
    """Ranks that train one model, as real processes or as virtual workers."""

    @property
    def model(self) -> nn.Module:
        """The bare model: what is evaluated, and what the optimizer steps."""

    @property
    def ranks(self) -> int: ...
    @property
    def leads(self) -> bool:
        """Whether this process evaluates, logs and writes files."""

    @property
    def steps(self) -> int:
        """The steps of an epoch."""

    def backward(self, epoch: int, step: int) -> Tensor:
        """Put the mean gradient of all ranks into `.grad`; the mean of their losses.

        In real processes, the loss is this rank's; see `averages`.
        """

    def averages(self, figures: list[float]) -> list[float]:
        """The mean of each figure over all processes."""

    def agree(self, opinion: bool) -> bool:  # noqa: FBT001
        """The leader's decision, on all processes: clocks differ."""

    def evaluate(self) -> float:
        """The metric, computed by the leader, the same everywhere."""

    def final(self) -> dict[str, float]:
        """Further figures for the end of a run, by the leader."""

    def set_density(self, density: float) -> None: ...
    def health_record(self) -> HealthRecord: ...
    def check_replicas(self) -> None:
        """Raise where ranks would go on with different parameters."""

    def check_savable(self) -> None:
        """Raise `ConfigError` where the state of a run cannot be saved."""

    def state_dict(self) -> Any:
        """What all ranks remember, on every process."""

    def load_state_dict(self, state: Any) -> None: ...


def checksum(model: nn.Module) -> int:
    """A checksum of all parameters, in order.

    >>> checksum(nn.Linear(2, 2)) == checksum(nn.Linear(2, 2))
    False
    """
    total = 0
    with torch.no_grad():
        for parameter in model.parameters():
            total = zlib.crc32(parameter.detach().cpu().numpy().tobytes(), total)
    return total
