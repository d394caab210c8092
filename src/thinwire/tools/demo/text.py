"""A text that every machine has: the source of Python's own standard library.

About 4.5 MB of real text, read in 0.1 s and cut into symbols one byte long. The same
Python gives the same text; another version of Python gives a slightly different one.
"""

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from thinwire.errors import ConfigError

_LETTERS = bytes(range(32, 127))
SYMBOLS = 1 + len(_LETTERS)  # the end of a line, then what ASCII can print

# Everything else counts as a question mark.
_TO_SYMBOL = bytes(
    0 if byte == ord("\n") else 1 + _LETTERS.find(byte if byte in _LETTERS else b"?")
    for byte in range(256)
)
_HELD_OUT = 0.05
_SMALLEST = 100_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """Symbols to train on, and symbols kept back to test on."""

    train: Tensor
    held_out: Tensor

    @classmethod
    def of(cls, text: bytes) -> Self:
        """A text cut in two: its end is held out."""
        symbols = torch.frombuffer(
            bytearray(text.translate(_TO_SYMBOL)), dtype=torch.uint8
        )
        cut = len(symbols) - int(len(symbols) * _HELD_OUT)
        return cls(symbols[:cut], symbols[cut:])


def standard_library(folder: Path | None = None) -> bytes:
    """The modules of the standard library, one after the other in order of name."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if len(text) < _SMALLEST:
        raise ConfigError(
            f"only {len(text)} bytes of Python source in {folder}: the demo learns "
            "from the standard library's own source, which this Python seems to lack"
        )
    return text


def windows(symbols: Tensor, count: int, length: int, *, seed: int) -> Tensor:
    """`count` pieces of `length` symbols from random places, as int64.

    >>> windows(torch.arange(9), 2, 4, seed=0).tolist()
    [[2, 3, 4, 5], [3, 4, 5, 6]]
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(
        0, len(symbols) - length + 1, (count, 1), generator=generator
    )
    return symbols[starts + torch.arange(length)].long()
