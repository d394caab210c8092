"""Receives that were posted before the exchanges that they belong to."""

from collections import deque
from typing import Generic, TypeVar

from thinwire.errors import GroupError

Handle = TypeVar("Handle")


class EarlyReceives(Generic[Handle]):
    """Posted receives by rank, in their order, and a handle for each.

    >>> early = EarlyReceives[str]()
    >>> early.add(3, 100, "buffer")
    >>> early.take(3, 100), early.take(3, 100)
    ('buffer', None)
    """

    def __init__(self) -> None:
        self._posted: dict[int, deque[tuple[int, Handle]]] = {}

    def add(self, src: int, nbytes: int, handle: Handle) -> None:
        """Remember one more receive from a rank."""
        self._posted.setdefault(src, deque()).append((nbytes, handle))

    def take(self, src: int, nbytes: int) -> Handle | None:
        """The handle of the next receive from a rank; None if none was posted."""
        posted = self._posted.get(src)
        if not posted:
            return None
        length, handle = posted[0]
        if length != nbytes:
            raise GroupError(
                f"{nbytes} bytes of rank {src} are asked for where {length} were "
                "expected"
            )
        posted.popleft()
        return handle

    def check_empty(self) -> None:
        """Refuse another call while receives are posted: they would get its bytes."""
        left = [str(src) for src, posted in self._posted.items() if posted]
        if left:
            raise GroupError(
                f"messages of rank {', '.join(left)} are still expected: a reduction "
                "was not finished; start the process group anew"
            )
