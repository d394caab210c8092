"""The contract of tasks: a model, its data, and the recipe that fits them.

Batches follow from their arguments alone, so that real processes and virtual workers
see the same.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from experiments.tasks.adamw import AdamW, adamw
from thinwire.errors import ConfigError

Schedule = Literal["constant", "cosine", "linear", "steps"]
Optimizer = Literal["sgd", "adagrad", "adamw", "torch-adamw"]
Batch = tuple[Tensor, ...]
Carry = Any  # detached tensors, however nested, or None

_DROP = 0.1  # what a milestone multiplies the learning rate by


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a task is trained: by default by SGD, without extras.

    `batch` is a worker's. The learning rate rises in a straight line for
    `warmup_epochs`, or for `warmup_steps`, then falls: to `final` of what it was
    ("cosine", "linear"), by 10 at every milestone ("steps", as fractions of all epochs)
    or not at all. `densities` are in force in the first epochs, one each. `clip` bounds
    the norm of the reduced gradient. `epoch_steps` is the length of an epoch for tasks
    that draw their examples at random.

    "adamw" is the AdamW that fits the method: thinwire's where entries wait in a
    residual, torch's where they do not. "torch-adamw" is always torch's. Both decay
    matrices only.

    >>> recipe = Recipe(epochs=4, batch=8, learning_rate=0.1, schedule="linear",
    ...     warmup_epochs=1, densities=(0.25, 0.06))
    >>> [round(recipe.rate(step, 2), 4) for step in range(8)]
    [0.025, 0.075, 0.0917, 0.075, 0.0583, 0.0417, 0.025, 0.0083]
    >>> [recipe.density(epoch, 0.01) for epoch in range(4)]
    [0.25, 0.06, 0.01, 0.01]
    """

    epochs: int
    batch: int
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Schedule = "constant"
    milestones: tuple[float, ...] = ()
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    final: float = 0.0
    epoch_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    densities: tuple[float, ...] = ()
    optimizer: Optimizer = "sgd"

    def __post_init__(self) -> None:
        self._check_choices()
        for name in ("epochs", "batch", "learning_rate"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}: give a number above 0")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip is {self.clip}: give a norm above 0, or None")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum is {self.momentum}: choose 0 up to below 1")
        if self.optimizer != "sgd" and self.momentum:
            name = "AdamW" if self.has_adamw else "Adagrad"
            raise ConfigError(f"{name} has no momentum: set momentum to 0")
        for density in self.densities:
            if not 0 < density <= 1:
                raise ConfigError(
                    f"a warm-up density of {density}: give fractions above 0, up to 1"
                )

    def _check_choices(self) -> None:
        for name, kind in (("schedule", Schedule), ("optimizer", Optimizer)):
            chosen, known = getattr(self, name), get_args(kind)
            if chosen not in known:
                raise ConfigError(
                    f"{name} is {chosen!r}: choose from {', '.join(known)}"
                )
        for name in ("weight_decay", "warmup_epochs", "warmup_steps"):
            value = getattr(self, name)
            if not value >= 0:
                raise ConfigError(f"{name} is {value}: give 0 or more")
        self._check_adamw()

    def _check_adamw(self) -> None:
        if self.warmup_epochs and self.warmup_steps:
            raise ConfigError("give warmup_epochs or warmup_steps, not both")
        if self.epoch_steps is not None and self.epoch_steps < 1:
            raise ConfigError(f"epoch_steps is {self.epoch_steps}: give 1 or more")
        if not 0 <= self.final <= 1:
            raise ConfigError(f"final is {self.final}: give a fraction from 0 to 1")
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0:
            raise ConfigError(
                f"betas are {self.betas} and eps is {self.eps}: give betas from 0 up "
                "to below 1, and an eps above 0"
            )

    @property
    def has_adamw(self) -> bool:
        """Whether parameters are stepped by AdamW, whosever it is."""
        return self.optimizer in ("adamw", "torch-adamw")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from the start; `steps` make an epoch.

        Taken in the middle of the step, so that it is never 0.
        """
        done = (step + 0.5) / steps
        warmup = self.warmup_epochs + self.warmup_steps / steps
        if done < warmup:
            return self.learning_rate * done / warmup
        rest = max(self.epochs - warmup, 1e-9)
        decay = self._decay(min((done - warmup) / rest, 1.0), done / self.epochs)
        return self.learning_rate * (self.final + (1 - self.final) * decay)

    def _decay(self, since_warmup: float, of_all: float) -> float:
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * since_warmup))
        if self.schedule == "linear":
            return 1 - since_warmup
        if self.schedule == "steps":
            return float(_DROP ** sum(of_all >= place for place in self.milestones))
        return 1.0

    def density(self, epoch: int, then: float) -> float:
        """The density in force in an epoch, where `then` is the one in the end."""
        if epoch < len(self.densities):
            return max(self.densities[epoch], then)
        return then

    def optimizer_of(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        momentum: float | None = None,
        waits: bool = False,
    ) -> torch.optim.Optimizer:
        """The optimizer; `momentum` replaces the recipe's (0: the feedback has it).

        `waits` says that entries of the gradient wait in a residual.
        """
        if self.has_adamw:
            settings = AdamW(
                self.learning_rate, self.betas, self.eps, self.weight_decay
            )
            waits = waits and self.optimizer == "adamw"
            return adamw(parameters, settings, waits=waits)
        if self.optimizer == "adagrad":
            checks: Any = torch.sparse.check_sparse_tensor_invariants
            if not checks.is_enabled():
                checks.disable()  # said aloud, or Adagrad warns of it
            return torch.optim.Adagrad(
                parameters, self.learning_rate, weight_decay=self.weight_decay
            )
        momentum = self.momentum if momentum is None else momentum
        return torch.optim.SGD(
            parameters,
            self.learning_rate,
            momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov and momentum > 0,
        )


class Data(Protocol):
    """A task's examples, all of them on one device."""

    def steps(self, ranks: int) -> int:
        """The steps of an epoch; what does not fill a batch on every rank is left."""

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        """A rank's batch, augmented: a pure function of its arguments.

        Shapes are always the same. `step` is counted from the start of the epoch.
        """

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """The mean loss, and what the rank's next batch of this epoch needs to know.

        `carry` is what the step before returned, None at the start of an epoch. A model
        that draws random numbers (dropout) takes them from torch's default generator,
        which the caller seeds for every rank and step.
        """

    def evaluate(self, model: nn.Module) -> float:
        """The task's metric on held-out data, in eval mode, without gradients.

        The model is left in the mode it was in.
        """

    def final(self, model: nn.Module) -> dict[str, float]:
        """Further figures for the end of a run, such as a test perplexity, or none."""


class Task(Protocol):
    """A model, its data, and how to train it; a frozen dataclass."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str:
        """What `Data.evaluate` returns, in words."""

    @property
    def higher_is_better(self) -> bool: ...
    @property
    def recipe(self) -> Recipe:
        """A field, so that `dataclasses.replace` changes it."""

    def model(self) -> nn.Module:
        """A new model on the CPU; the caller seeds torch before."""

    def data(self, device: torch.device) -> Data:
        """Load everything onto a device, once; raises `ConfigError` if it cannot."""
