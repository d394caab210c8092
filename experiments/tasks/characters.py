"""The demo's task: the next character of a text, by default of Python's own library."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.tasks.base import Batch, Carry, Recipe
from experiments.tasks.evaluating import evaluating
from experiments.tasks.files import Files, Source
from experiments.tasks.order import PerEpoch, share, steps_of
from thinwire.errors import ConfigError
from thinwire.tools.demo.model import CharacterModel, Shape, loss_of
from thinwire.tools.demo.text import Corpus, standard_library

SOURCE = Source("a text to learn from", "anywhere", "one file of plain text")
_HELD_OUT_WINDOWS = 512
_LEAST = 10_000  # characters


def load(path: Path | None) -> Corpus:
    """The text in a file, or the source of Python's standard library."""
    if path is None:
        return Corpus.of(standard_library())
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: pass a file of text as --data")
    text = Files(path, SOURCE).read(path.name.removesuffix(".gz"))
    if len(text) < _LEAST:
        raise ConfigError(f"{len(text)} bytes in {path}: give {_LEAST} or more")
    return Corpus.of(text)


@dataclass(frozen=True)
class Pieces:
    """How much is read in a step: `count` pieces on a rank, `context` characters."""

    count: int
    context: int


class CharacterData:
    """`Data` of a task whose metric is the held-out loss, in bits per character."""

    def __init__(self, corpus: Corpus, device: torch.device, pieces: Pieces) -> None:
        self._train, self._pieces = corpus.train.to(device), pieces
        self._places = torch.arange(pieces.context + 1, device=device)
        last = len(corpus.held_out) - pieces.context - 1
        starts = torch.linspace(0, last, _HELD_OUT_WINDOWS).long().to(device)
        held_out = corpus.held_out.to(device)
        self._held_out = held_out[starts[:, None] + self._places].long()
        self._starts = PerEpoch(self._draw)

    def steps(self, ranks: int) -> int:
        return steps_of(self._count, self._pieces.count, ranks)

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        mine = share(rank, ranks, step, self._pieces.count)
        starts = self._starts(seed, epoch)[mine]
        return (self._train[starts[:, None] + self._places].long(),)

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        return loss_of(model, batch[0]), carry

    def evaluate(self, model: nn.Module) -> float:
        with evaluating(model):
            return loss_of(model, self._held_out).item() / math.log(2)

    def final(self, model: nn.Module) -> dict[str, float]:
        return {}

    @property
    def _count(self) -> int:
        return len(self._train) // self._pieces.context - 1

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Pieces side by side, shuffled; where the first begins is drawn too."""
        first = torch.randint(self._pieces.context, (), generator=generator)
        order = torch.randperm(self._count, generator=generator)
        return (first + self._pieces.context * order).to(self._train.device)


@dataclass(frozen=True)
class CharacterTask:
    """The demo's model on the text at a path, or on the standard library."""

    name: str
    recipe: Recipe
    path: Path | None

    metric = "bits per character"
    higher_is_better = False

    def model(self) -> nn.Module:
        return CharacterModel(Shape())

    def data(self, device: torch.device) -> CharacterData:
        pieces = Pieces(self.recipe.batch, Shape().context)
        return CharacterData(load(self.path), device, pieces)
