"""Windows of a text, drawn at random: how GPTs are trained.

An epoch has as many steps as the recipe says. Held-out windows are always the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.tasks.base import Batch, Carry, Recipe
from experiments.tasks.evaluating import evaluating
from experiments.tasks.gpt import GPT, GPTShape, loss_of
from experiments.tasks.order import PerEpoch, share
from experiments.tasks.precision import half
from thinwire.errors import ConfigError

_AT_ONCE = 64  # windows that are evaluated together
_EPOCH_STEPS = 250


@dataclass(frozen=True)
class Text:
    """Symbols as uint8: to train on, and held out."""

    train: Tensor
    held_out: Tensor
    symbols: int = 256


@dataclass(frozen=True, slots=True)
class Unit:
    """What a metric is called, and how it follows from nats a symbol."""

    name: str
    of: Callable[[float], float]


BITS = Unit("bits per byte", lambda nats: nats / math.log(2))
NATS = Unit("held-out loss, nats", lambda nats: nats)
PERPLEXITY = Unit("perplexity of a byte", lambda nats: math.exp(min(nats, 700.0)))


@dataclass(frozen=True, slots=True)
class Held:
    """What is measured: at most `most` windows, one every `stride` symbols."""

    most: int = 256
    stride: int = 1024
    unit: Unit = BITS


class WindowData:
    """`Data` of a task whose metric is the loss on held-out windows, in some unit."""

    def __init__(
        self,
        text: Text,
        device: torch.device,
        recipe: Recipe,
        *,
        context: int,
        held: Held,
    ) -> None:
        _check_length(text.train, context, "train on")
        _check_length(text.held_out, context, "evaluate on")
        self._train, self._unit = text.train.to(device), held.unit
        self._batch, self._context = recipe.batch, context
        self._steps = recipe.epoch_steps or _EPOCH_STEPS
        self._places = torch.arange(context + 1, device=device)
        held_out = text.held_out.to(device)
        last = len(held_out) - context - 1
        starts = torch.arange(0, last + 1, held.stride, device=device)[: held.most]
        self._held_out = held_out[starts[:, None] + self._places].long()
        self._starts = PerEpoch(self._draw)

    def steps(self, ranks: int) -> int:
        return self._steps

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        mine = share(rank, ranks, step, self._batch)
        starts = self._starts(seed, epoch, ranks)[mine]
        return (self._train[starts[:, None] + self._places].long(),)

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        with half(batch[0].device):
            return loss_of(model, batch[0]), carry

    def evaluate(self, model: nn.Module) -> float:
        total = torch.zeros((), dtype=torch.float64, device=self._held_out.device)
        with evaluating(model), half(self._held_out.device):
            for some in torch.split(self._held_out, _AT_ONCE):
                total += len(some) * loss_of(model, some)
        return self._unit.of(total.item() / len(self._held_out))

    def final(self, model: nn.Module) -> dict[str, float]:
        return {}

    def _draw(self, generator: torch.Generator, ranks: int) -> Tensor:
        room = (self._steps * ranks * self._batch,)
        last = len(self._train) - self._context
        starts = torch.randint(last, room, generator=generator)
        return starts.to(self._train.device)


def _check_length(text: Tensor, context: int, what: str) -> None:
    if len(text) <= context:
        raise ConfigError(
            f"a text of {len(text)} symbols to {what}: give {context + 1} or more"
        )


@dataclass(frozen=True, kw_only=True)
class WindowTask:
    """A GPT on the text that `load` reads at a path.

    `start` is a file of parameters to begin with, as `Job.model` writes it.
    """

    name: str
    recipe: Recipe
    path: Path
    verify: bool
    load: Callable[[Path, bool], Text]
    shape: GPTShape
    held: Held = Held()
    start: Path | None = None

    higher_is_better = False

    @property
    def metric(self) -> str:
        return self.held.unit.name

    def model(self) -> nn.Module:
        model = GPT(self.shape)
        if self.start is not None:
            model.load_state_dict(_started(self.start))
        return model

    def data(self, device: torch.device) -> WindowData:
        return WindowData(
            self._text,
            device,
            self.recipe,
            context=self.shape.context,
            held=self.held,
        )

    @cached_property
    def _text(self) -> Text:
        text = self.load(self.path, self.verify)
        if text.symbols > self.shape.symbols:
            raise ConfigError(
                f"{self.path} has {text.symbols} different symbols, and {self.name} "
                f"knows {self.shape.symbols}: give another text"
            )
        return text


def _started(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}: it is what a dense run of gpt-bytes leaves. Run "
            "`python -m experiments.adamw --data DATA --only dense` first"
        )
    held: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return held
