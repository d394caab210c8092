"""`thinwire.kernels.random_words` inside compiled kernels."""

from typing import Any

import numpy as np

from thinwire.kernels import random_words
from thinwire.kernels.cpu.compiled import part

_STEP, _FIRST, _SECOND = random_words.STEP, random_words.FIRST, random_words.SECOND


@part
def mixed(word: Any) -> Any:
    """Every bit of the result depends on every bit of the word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    return word ^ (word >> np.uint64(31))


@part
def random_word(mixed_key: Any, number: Any) -> Any:
    """Word `number` of the sequence of a key that is mixed already."""
    return mixed(np.uint64(mixed_key) + np.uint64(number + 1) * np.uint64(_STEP))
