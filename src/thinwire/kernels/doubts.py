"""What comes over a wire is judged where it lies; on a device, nobody waits for that.

A decoder on a device leaves its verdict there, as a word that is zero if all was well.
`doubting` says which word; `Doubts` has one for every rank, copies them to the
processor's memory behind the work of each reduction, and reads what has arrived.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from thinwire.kernels.transfers import start_fetch

# Copies that may be on their way: who goes on without them waits for the oldest.
_UNREAD = 2

_word: ContextVar[Tensor | None] = ContextVar("doubt", default=None)


@contextmanager
def doubting(word: Tensor) -> Iterator[None]:
    """Let decoders on a device set `word`, an int32, instead of raising an error."""
    token = _word.set(word)
    try:
        yield
    finally:
        _word.reset(token)


def in_doubt(found: Tensor) -> bool:
    """Whether a decoder must look closer: never where its verdict is noted instead."""
    word = _word.get()
    if word is None:
        return bool(found)
    word.bitwise_or_(found)
    return False


class Doubts:
    """A word of doubt for each of `ranks`, and copies of all of them to come."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._words = torch.zeros(ranks, dtype=torch.int32, device=device)
        self._copies: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def of(self, rank: int) -> Tensor:
        """The word for what comes from a rank."""
        return self._words[rank : rank + 1]

    def note(self) -> None:
        """Have the words copied as they are behind all that was begun so far."""
        copy = start_fetch(self._words) if self._words.is_cuda else (self._words, None)
        self._copies.append(copy)

    def found(self, *, wait: bool = False) -> list[int]:
        """The ranks that are in doubt, as far as that is known; or wait and see."""
        while self._copies:
            words, event = self._copies[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                if not wait and len(self._copies) <= _UNREAD:
                    break
                event.synchronize()
            doubtful = [rank for rank, word in enumerate(words.tolist()) if word]
            if doubtful:
                return doubtful  # and again, to whoever asks again
            self._copies.popleft()
        return []
