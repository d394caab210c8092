"""What comes over a wire is judged where it lies; on a device, nobody waits for that.

A decoder on a device leaves its verdict there, as a word that is zero if all was well.
`doubting` says which word; `Doubts` has one for every rank, copies them to the
processor's memory behind the work of each reduction, and reads what has arrived.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

from thinwire.kernels.entry import backend, entered

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


def doubt_unless_(word: Tensor, section: Tensor, expected: bytes) -> None:
    """Set `word` if these bytes are others."""
    with entered("doubt_unless_"):
        wanted = on_device(expected, section.device)
        backend(section).doubt_unless_(word, section, wanted)


@lru_cache(maxsize=1024)
def on_device(data: bytes, device: torch.device) -> Tensor:
    """Bytes in the memory of a device; once there, they cost no copy."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def fetch(tensor: Tensor) -> Tensor:
    """The tensor in the processor's memory; waits for what is before it, no more."""
    if tensor.is_cpu:
        return tensor
    fetched, event = _on_its_way(tensor)
    event.synchronize()
    return fetched


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
        copy = _on_its_way(self._words) if self._words.is_cuda else (self._words, None)
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


def _on_its_way(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """A copy in pinned memory, and the event that tells when it is there."""
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return pinned, event
