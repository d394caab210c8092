"""WikiText-2: two million words of Wikipedia articles, rare ones replaced by <unk>."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from experiments.tasks.files import Files, Source
from experiments.tasks.windows import Text
from thinwire.errors import ConfigError

SOURCE = Source(
    "WikiText-2",
    "https://github.com/pytorch/examples (word_language_model/data/wikitext-2)",
    "train.txt, valid.txt and test.txt (or wiki.train.tokens and so on)",
    {
        "train.txt": "sha256:"
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid.txt": "sha256:"
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test.txt": "sha256:"
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
)
_PARTS = ("train", "valid", "test")
_END = "<eos>"
_UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Words:
    """The three parts as int64 numbers of words; `vocabulary` is how many there are."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int


def load(path: Path, *, verify: bool = True, most: int | None = None) -> Words:
    """Read the three files; words are numbered in the order of their first use.

    If there are more than `most`, only the most frequent ones keep their names.
    """
    files = Files(path, SOURCE, verify)
    words = {part: _words(files, part) for part in _PARTS}
    # Other texts may have words that the first part does not: they count too.
    numbers: dict[str, int] = {}
    for word in chain.from_iterable(words.values()):
        numbers.setdefault(word, len(numbers))
    if most is not None and len(numbers) > most:
        numbers = _frequent(words["train"], most)
    parts = {p: _numbered(words[p], numbers) for p in _PARTS}
    return Words(**parts, vocabulary=len(numbers))


def load_bytes(path: Path, verify: bool = True) -> Text:  # noqa: FBT001, FBT002
    """The bytes of the first two files: to train on, and held out."""
    files = Files(path, SOURCE, verify)
    train, valid = (
        torch.frombuffer(bytearray(files.read(_named(files, part))), dtype=torch.uint8)
        for part in _PARTS[:2]
    )
    return Text(train, valid)


def _frequent(words: Sequence[str], most: int) -> dict[str, int]:
    """The most frequent words, the first ones first where they are as frequent."""
    counts = Counter(word for word in words if word != _UNKNOWN)
    named = [word for word, _ in counts.most_common(most - 1)]
    return {word: number for number, word in enumerate([_UNKNOWN, *named])}


def _numbered(words: Sequence[str], numbers: Mapping[str, int]) -> Tensor:
    unknown = numbers.get(_UNKNOWN, -1)  # where there is none, every word has a number
    return torch.tensor([numbers.get(word, unknown) for word in words])


def _words(files: Files, part: str) -> list[str]:
    name = _named(files, part)
    try:
        text = files.read(name).decode()
    except UnicodeDecodeError as problem:
        raise ConfigError(
            f"{name} in {files.path} is not a text in UTF-8: {problem}"
        ) from problem
    # Not splitlines: it would also split at characters that occur within lines.
    lines = text.removesuffix("\n").split("\n")
    return [word for line in lines for word in (*line.split(), _END)]


def _named(files: Files, part: str) -> str:
    return files.find(f"{part}.txt", f"wiki.{part}.tokens") or f"{part}.txt"
