"""Expected: what later exchanges will bring, and a guard against anything else."""

from collections import deque
from typing import Generic, TypeVar

from thinwire.errors import GroupError

Held = TypeVar("Held")


class Expected(Generic[Held]):
    """Bodies that will come, by rank, in their order, and what is held for each.

    >>> expected = Expected[str]()
    >>> expected.add(3, 100, "room")
    >>> expected.take(3, 100), expected.take(3, 100)
    ('room', None)
    """

    def __init__(self) -> None:
        self._bodies: dict[int, deque[tuple[int, Held]]] = {}

    def add(self, src: int, nbytes: int, held: Held) -> None:
        """Expect one more body of a rank."""
        self._bodies.setdefault(src, deque()).append((nbytes, held))

    def take(self, src: int, nbytes: int) -> Held | None:
        """What is held for the next body of a rank; None if none is expected."""
        bodies = self._bodies.get(src)
        if not bodies:
            return None
        expected, held = bodies[0]
        if expected != nbytes:
            raise GroupError(
                f"{nbytes} bytes of rank {src} are asked for where {expected} were "
                "expected"
            )
        bodies.popleft()
        return held

    def check_empty(self) -> None:
        """Refuse another call while something is to come: it would get that instead."""
        left = [str(src) for src, bodies in self._bodies.items() if bodies]
        if left:
            raise GroupError(
                f"messages of rank {', '.join(left)} are still expected: a reduction "
                "was not finished; start the process group anew"
            )
