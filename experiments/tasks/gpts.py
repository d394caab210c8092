"""The GPTs among the reference tasks: shapes, recipes, and where their text is from."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from experiments.tasks import shakespeare, wikitext
from experiments.tasks.base import Recipe, Task
from experiments.tasks.files import Source
from experiments.tasks.gpt import GPTShape
from experiments.tasks.windows import NATS, PERPLEXITY, Held, WindowTask

_BYTES = GPTShape()
_NANOGPT = GPTShape(symbols=65, dropout=0.2, bias=False, tied=True)
_SMALL = GPTShape(symbols=65, context=64, width=128, layers=2, heads=4)

_GPT = Recipe(
    epochs=6,
    epoch_steps=250,
    batch=8,
    learning_rate=1e-3,
    optimizer="adamw",
    betas=(0.9, 0.95),
    weight_decay=0.1,
    schedule="cosine",
    final=0.1,
    warmup_steps=100,
)
# config/train_shakespeare_char.py of nanoGPT, which has 64 sequences in a step.
_NANOGPT_RECIPE = replace(_GPT, epochs=20, betas=(0.9, 0.99), clip=1.0)
_FINETUNE = replace(
    _GPT, epochs=5, epoch_steps=100, learning_rate=3e-4, warmup_steps=50
)
_SMALL_RECIPE = replace(_GPT, epochs=6, epoch_steps=100, warmup_steps=30, clip=1.0)

PRETRAINED = "gpt-bytes.pt"
"""The parameters of a dense run of gpt-bytes, in the folder of gpt-finetune's data."""

Make = Callable[[str, Path, bool], Task]


def _gpt_bytes(name: str, path: Path, verify: bool) -> Task:  # noqa: FBT001
    return WindowTask(
        name=name,
        recipe=_GPT,
        path=path,
        verify=verify,
        load=wikitext.load_bytes,
        shape=_BYTES,
    )


def _characters(shape: GPTShape, recipe: Recipe) -> Make:
    return lambda name, path, verify: WindowTask(
        name=name,
        recipe=recipe,
        path=path,
        verify=verify,
        load=shakespeare.load_characters,
        shape=shape,
        # The whole held-out text, window by window.
        held=Held(most=2000, stride=shape.context, unit=NATS),
    )


def _finetune(name: str, path: Path, verify: bool) -> Task:  # noqa: FBT001
    return WindowTask(
        name=name,
        recipe=_FINETUNE,
        path=path / "tiny-shakespeare",
        verify=verify,
        load=shakespeare.load_bytes,
        shape=_BYTES,
        held=Held(most=2000, stride=_BYTES.context, unit=PERPLEXITY),
        start=path / PRETRAINED,
    )


GPTS: Mapping[str, tuple[str, Source, Make]] = {
    "gpt-bytes": (
        "GPT of 10.9 M parameters on the bytes of WikiText-2",
        wikitext.SOURCE,
        _gpt_bytes,
    ),
    "nanogpt-shakespeare": (
        "nanoGPT's model of characters, on tiny Shakespeare",
        shakespeare.SOURCE,
        _characters(_NANOGPT, _NANOGPT_RECIPE),
    ),
    "gpt-finetune": (
        "gpt-bytes, trained before on WikiText-2, goes on with tiny Shakespeare",
        shakespeare.SOURCE,
        _finetune,
    ),
    "small-shakespeare": (
        "a GPT of 0.4 M parameters on the characters of tiny Shakespeare",
        shakespeare.SOURCE,
        _characters(_SMALL, _SMALL_RECIPE),
    ),
}
