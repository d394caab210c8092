"""Tiny Shakespeare: a million characters of plays; the last tenth is held out."""

from pathlib import Path

import torch
from torch import Tensor

from experiments.tasks.files import Files, Source
from experiments.tasks.windows import Text

SOURCE = Source(
    "tiny Shakespeare",
    "https://github.com/karpathy/char-rnn (data/tinyshakespeare)",
    "input.txt",
    {
        "input.txt": "sha256:"
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    },
)
_TRAINED = 0.9  # as nanoGPT cuts it


def load_bytes(path: Path, verify: bool = True) -> Text:  # noqa: FBT001, FBT002
    """The text as bytes."""
    return _cut(_read(path, verify=verify), 256)


def load_characters(path: Path, verify: bool = True) -> Text:  # noqa: FBT001, FBT002
    """The text as numbers of the characters that occur, in the order of their codes."""
    known, numbers = torch.unique(_read(path, verify=verify), return_inverse=True)
    return _cut(numbers.to(torch.uint8), len(known))


def _read(path: Path, *, verify: bool) -> Tensor:
    text = Files(path, SOURCE, verify).read("input.txt")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _cut(text: Tensor, symbols: int) -> Text:
    cut = int(_TRAINED * len(text))
    return Text(text[:cut], text[cut:], symbols)
