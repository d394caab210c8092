"""The reference tasks by name, each with the recipe that was chosen for it.

Recipes are for eight workers (recommendation and characters: four). With another number
of workers the batch of all of them together changes, and the learning rate should too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from experiments.tasks import cifar10, idx, ratings, wikitext
from experiments.tasks.base import Recipe, Task
from experiments.tasks.characters import CharacterTask
from experiments.tasks.files import Source
from experiments.tasks.gpts import GPTS
from experiments.tasks.images import ImageTask
from experiments.tasks.language import LanguageTask
from experiments.tasks.lstm import WordLSTM
from experiments.tasks.recommendation import RecommendationTask
from experiments.tasks.transformer import WordTransformer
from experiments.tasks.vit import ViT
from thinwire.errors import ConfigError
from thinwire.tools.demo.model import Shape
from thinwire.tools.models import VGG16, ResNet20

_BPTT = 35  # words that a recurrent network is trained through
_FREQUENT = 10_000  # words of the recurrent network, as many as Penn Treebank has
_WORDS = Shape(width=256, layers=4, heads=4, context=64)

_RESNET = Recipe(
    epochs=30,
    batch=32,
    learning_rate=0.2,
    momentum=0.9,
    weight_decay=5e-4,
    schedule="cosine",
    warmup_epochs=3,
)
_VGG = replace(_RESNET, learning_rate=0.1)
_LSTM = Recipe(
    epochs=8,
    batch=32,
    learning_rate=10.0,
    clip=1.0,
    schedule="cosine",
    warmup_epochs=0.5,
)
_TRANSFORMER = Recipe(
    epochs=12,
    batch=8,
    learning_rate=0.5,
    momentum=0.9,
    clip=0.5,
    schedule="cosine",
    warmup_epochs=1,
)
_TRANSFORMER_ADAMW = Recipe(
    epochs=6,
    batch=8,
    learning_rate=1e-3,
    optimizer="adamw",
    weight_decay=0.1,
    schedule="cosine",
    final=0.1,
    warmup_epochs=0.3,
)
_VIT = Recipe(
    epochs=25,
    batch=64,
    learning_rate=1e-3,
    optimizer="adamw",
    weight_decay=0.05,
    schedule="cosine",
    warmup_epochs=1.25,
)
_SMOOTHING = 0.1  # of labels, for the vision transformer
_NCF = Recipe(
    epochs=8, batch=256, learning_rate=0.03, schedule="linear", optimizer="adagrad"
)
_CHARACTERS = Recipe(epochs=1, batch=8, learning_rate=0.5, momentum=0.5, clip=1.0)


@dataclass(frozen=True)
class Entry:
    """A task in a list: what it is, where its data comes from, how it is made."""

    summary: str
    source: Source | None  # None: it needs no data of the user's
    make: Callable[[str, Path, bool], Task]


def _images(
    network: Callable[..., Any],
    recipe: Recipe,
    *,
    channels: int,
    smoothing: float = 0.0,
) -> Callable[[str, Path, bool], Task]:
    load = cifar10.load if channels > 1 else idx.load
    return lambda name, path, verify: ImageTask(
        name, recipe, path, verify, load, lambda: network(channels), smoothing
    )


def _words(
    network: Callable[[int], Any],
    recipe: Recipe,
    length: int,
    most: int | None = None,
) -> Callable[[str, Path, bool], Task]:
    return lambda name, path, verify: LanguageTask(
        name, recipe, path, verify, network, length, most
    )


TASKS: dict[str, Entry] = {
    "resnet20-cifar10": Entry(
        "ResNet-20 on CIFAR-10", cifar10.SOURCE, _images(ResNet20, _RESNET, channels=3)
    ),
    "vgg16-cifar10": Entry(
        "VGG-16 on CIFAR-10", cifar10.SOURCE, _images(VGG16, _VGG, channels=3)
    ),
    "resnet20-fashion": Entry(
        "ResNet-20 on Fashion-MNIST",
        idx.SOURCE,
        _images(ResNet20, replace(_RESNET, epochs=20), channels=1),
    ),
    "vgg16-fashion": Entry(
        "VGG-16 on Fashion-MNIST",
        idx.SOURCE,
        _images(VGG16, replace(_VGG, epochs=20), channels=1),
    ),
    "lstm-wikitext2": Entry(
        "two-layer LSTM on the 10,000 most frequent words of WikiText-2",
        wikitext.SOURCE,
        _words(WordLSTM, _LSTM, _BPTT, _FREQUENT),
    ),
    "transformer-wikitext2": Entry(
        "small transformer on the words of WikiText-2",
        wikitext.SOURCE,
        _words(
            lambda size: WordTransformer(size, _WORDS), _TRANSFORMER, _WORDS.context
        ),
    ),
    "transformer-wikitext2-adamw": Entry(
        "the same, trained by AdamW",
        wikitext.SOURCE,
        _words(
            lambda size: WordTransformer(size, _WORDS),
            _TRANSFORMER_ADAMW,
            _WORDS.context,
        ),
    ),
    "vit-cifar10": Entry(
        "small vision transformer on CIFAR-10",
        cifar10.SOURCE,
        _images(ViT, _VIT, channels=3, smoothing=_SMOOTHING),
    ),
    **{name: Entry(*entry) for name, entry in GPTS.items()},
    "ncf-ratings": Entry(
        "neural collaborative filtering with sparse embeddings on film ratings",
        ratings.SOURCE,
        lambda name, path, _: RecommendationTask(name, _NCF, path),
    ),
    "characters": Entry(
        "the demo's transformer on the characters of a text, without --data those of "
        "Python's standard library",
        None,
        lambda name, path, _: CharacterTask(name, _CHARACTERS, path),
    ),
}


def task(
    name: str, data: Path | None = None, *, verify: bool = True, **recipe: Any
) -> Task:
    """The task of a name on the data at a path; `recipe` changes its recipe's fields.

    Nothing is read before the task is asked for its model or its data.
    """
    entry = TASKS.get(name)
    if entry is None:
        close = get_close_matches(name, TASKS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(
            f"unknown task {name!r}{hint}: choose from {', '.join(TASKS)}"
        )
    if data is None and entry.source is not None:
        raise ConfigError(
            f"{name} needs data: {entry.source.instructions}; nothing is downloaded "
            "by itself"
        )
    made = entry.make(name, data, verify)  # type: ignore[arg-type]
    return replace(made, recipe=replace(made.recipe, **recipe))  # type: ignore[type-var]
