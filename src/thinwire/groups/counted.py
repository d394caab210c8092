"""Counted: a group that counts rounds and bytes as the cost cards do, and its waits.

An exchange is one round, and one more with 8 bytes if the length is sent first.
Gathers and all-to-alls are P - 1 rounds, as many again with lengths. An all-reduce is
a ring, or ceil(log2 P) rounds of all of it for a maximum; its parts share the rounds.
What stays on the rank costs nothing.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from thinwire.cost import Cost, at_once, max_reduce, ring_all_reduce
from thinwire.groups.checks import LENGTH_NBYTES
from thinwire.groups.group import Group, Op, WrappedGroup


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rounds, bytes each way, and seconds spent inside a group.

    >>> Traffic(rounds=2, sent=30) + Traffic(rounds=1, sent=10)
    Traffic(rounds=3, sent=40, received=0, wait=0.0)
    """

    rounds: int = 0
    sent: int = 0
    received: int = 0
    wait: float = 0.0

    @property
    def cost(self) -> Cost:
        """Rounds and bytes sent, as a collective's `cost` states them."""
        return Cost(rounds=self.rounds, nbytes=self.sent)

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.rounds + other.rounds,
            self.sent + other.sent,
            self.received + other.received,
            self.wait + other.wait,
        )


class Counted(WrappedGroup):
    """A group that counts. Any thread may read `traffic` or call `reset`.

    `traffic` includes that of its subgroups, which is in `parts`, by the arguments they
    were made with, and that with `everyone`, where this is another group.
    """

    def __init__(self, group: Group, everyone: Group | None = None) -> None:
        super().__init__(group)
        self._everyone = None if everyone is None else Counted(everyone)
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self.parts: dict[tuple[str, tuple[int, ...], bool], Counted] = {}

    @property
    def traffic(self) -> Traffic:
        """The traffic since the start or the last `reset`."""
        return sum((part.traffic for part in self._parts()), self._traffic)

    def traffic_of(self, name: str) -> Traffic:
        """The traffic of the subgroups of this name."""
        return sum((part.traffic for part in self._parts(name)), Traffic())

    @property
    def everyone(self) -> Group:
        return self if self._everyone is None else self._everyone

    def reset(self) -> Traffic:
        """Start from zero again; returns the traffic until now."""
        with self._lock:
            counted, self._traffic = self._traffic, Traffic()
        return sum((part.reset() for part in self._parts()), counted)

    def subgroup(
        self, members: Sequence[int], name: str, *, near: bool = False
    ) -> "Counted":
        key = name, tuple(members), near
        if key not in self.parts:
            part = type(self)(self._group.subgroup(members, name, near=near))
            with self._lock:
                self.parts[key] = part
        return self.parts[key]

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        with self._waiting():
            incoming = self._group.exchange(body, dst=dst, src=src, nbytes=nbytes)
        remote = {dst, src} - {None, self.rank}
        if remote:
            ahead = LENGTH_NBYTES if nbytes is None else 0
            sent = 0 if body is None else body.numel() + ahead
            received = 0 if incoming is None else incoming.numel() + ahead
            self._count(Traffic(2 if ahead else 1, sent, received))
        return incoming

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        with self._waiting():
            super().post_receives(bodies)

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        with self._waiting():
            incoming = self._group.all_to_all(bodies, nbytes=nbytes)
        others = self.size - 1
        lengths = LENGTH_NBYTES * others if nbytes is None else 0
        self._count(
            Traffic(
                rounds=2 * others if nbytes is None else others,
                sent=self._nbytes_of_others(bodies) + lengths,
                received=self._nbytes_of_others(incoming) + lengths,
            )
        )
        return incoming

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        with self._waiting():
            self._group.all_reduce_(*parts)
        cost = at_once(
            *(
                (max_reduce if op is Op.MAX else ring_all_reduce)(
                    tensor.nbytes, self.size
                )
                for tensor, op in parts
            )
        )
        self._count(Traffic(cost.rounds, cost.nbytes, cost.nbytes))

    def _nbytes_of_others(self, bodies: Sequence[Tensor]) -> int:
        return sum(body.numel() for body in bodies) - bodies[self.rank].numel()

    def _parts(self, name: str | None = None) -> "list[Counted]":
        with self._lock:
            every = list(self.parts.items())
        found = [part for key, part in every if name in (None, key[0])]
        return found if name or self._everyone is None else [*found, self._everyone]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self._count(Traffic(wait=self.now() - start))

    def _count(self, traffic: Traffic) -> None:
        with self._lock:
            self._traffic += traffic
