"""`thinwire.kernels.random_words` for tensors of int64, which wraps around."""

from torch import Tensor

from thinwire.kernels.hashes import signed
from thinwire.kernels.random_words import FIRST, SECOND, STEP


def random_words(mixed_key: int, numbers: Tensor) -> Tensor:
    """The words of these numbers in the sequence of a key that is mixed already."""
    words = signed(mixed_key) + signed(STEP) * (numbers + 1)
    words = (words ^ shifted(words, 30)) * signed(FIRST)
    words = (words ^ shifted(words, 27)) * signed(SECOND)
    return words ^ shifted(words, 31)


def shifted(words: Tensor, count: int) -> Tensor:
    """A shift to the right that brings in zeros, whatever the sign."""
    return (words >> count) & ((1 << (64 - count)) - 1)
