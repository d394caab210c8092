"""Words to predict: every rank reads on in texts of its own, a window per step.

The text is a ring, cut into as many lanes as there are sequences on all ranks; an epoch
starts anywhere on it. A recurrent model takes its state along from window to window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.tasks.base import Batch, Carry, Recipe
from experiments.tasks.evaluating import evaluating
from experiments.tasks.order import PerEpoch
from experiments.tasks.wikitext import Words, load
from thinwire.errors import ConfigError

_TEST_LANES = 10


@dataclass(frozen=True)
class Window:
    """How much is read in a step: `lanes` sequences on a rank, `length` words each."""

    lanes: int
    length: int


class LanguageData:
    """`Data` of a task whose metric is the perplexity of the validation text.

    Models map words (lanes, length) and a state to logits and the next state.
    """

    def __init__(self, words: Words, device: torch.device, window: Window) -> None:
        self.train = words.train.to(device)
        self._held_out = {
            "valid": words.valid.to(device),
            "test": words.test.to(device),
        }
        self._window = window
        self._places = torch.arange(window.length + 1, device=device)
        self._start = PerEpoch(self._draw)

    def steps(self, ranks: int) -> int:
        steps = self._lane(ranks) // self._window.length
        if steps < 1:
            raise ConfigError(
                f"a text of {len(self.train)} words is too short for {ranks} workers "
                f"with {self._window.lanes} sequences of {self._window.length} words"
            )
        return steps

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        lane = self._lane(ranks)
        first = rank * self._window.lanes
        starts = torch.arange(first, first + self._window.lanes, device=self._device)
        begin = self._start(seed, epoch) + step * self._window.length
        places = (starts[:, None] * lane + begin + self._places) % len(self.train)
        words = self.train[places]
        return words[:, :-1], words[:, 1:]

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        words, following = batch
        logits, carry = model(words, carry)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        return loss, _detached(carry)

    def evaluate(self, model: nn.Module) -> float:
        return self._perplexity(model, self._held_out["valid"])

    def final(self, model: nn.Module) -> dict[str, float]:
        return {"test perplexity": self._perplexity(model, self._held_out["test"])}

    @property
    def _device(self) -> torch.device:
        return self.train.device

    def _lane(self, ranks: int) -> int:
        return len(self.train) // (ranks * self._window.lanes)

    def _draw(self, generator: torch.Generator) -> int:
        return int(torch.randint(len(self.train), (), generator=generator))

    def _perplexity(self, model: nn.Module, text: Tensor) -> float:
        """Of all words but the last few, read once from start to end in ten lanes."""
        length = self._window.length
        lanes = min(_TEST_LANES, max(1, len(text) // (length + 1)))
        lane = (len(text) - 1) // lanes
        steps = lane // length
        if steps < 1:
            raise ConfigError(
                f"a text of {len(text)} words to evaluate on: give {length + 1} or more"
            )
        starts = torch.arange(lanes, device=text.device)[:, None] * lane
        total, carry = torch.zeros((), dtype=torch.float64, device=text.device), None
        with evaluating(model):
            for step in range(steps):
                words = text[starts + step * length + self._places]
                loss, carry = self.loss(model, (words[:, :-1], words[:, 1:]), carry)
                total += loss
        return math.exp(min(total.item() / steps, 700.0))


def _detached(carry: Carry) -> Carry:
    if isinstance(carry, Tensor):
        return carry.detach()
    return None if carry is None else tuple(_detached(part) for part in carry)


@dataclass(frozen=True)
class LanguageTask:
    """A network that predicts the next word of the texts at a path."""

    name: str
    recipe: Recipe
    path: Path
    verify: bool
    network: Callable[[int], nn.Module]
    length: int  # words that are read in a step
    most: int | None = None  # words that keep their names, the rest are one

    metric = "perplexity"
    higher_is_better = False

    def model(self) -> nn.Module:
        return self.network(self._words.vocabulary)

    def data(self, device: torch.device) -> LanguageData:
        return LanguageData(self._words, device, Window(self.recipe.batch, self.length))

    @cached_property
    def _words(self) -> Words:
        return load(self.path, verify=self.verify, most=self.most)
