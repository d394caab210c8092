"""SimulatedGroup: every rank is a thread of one process, and time is a number.

A packet arrives at sender's clock + latency + bytes / bandwidth; a rank's link is full
duplex and busy while it sends or receives; computing takes no time. `scheduler.py` says
why results and clocks do not depend on the scheduler.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from thinwire.cost import Link
from thinwire.errors import GroupError
from thinwire.groups import checks
from thinwire.groups.early_receives import EarlyReceives
from thinwire.groups.group import Group, Op
from thinwire.groups.simulation.collectives import AllReduce, AllToAll
from thinwire.groups.simulation.scheduler import Message, Scheduler

Result = TypeVar("Result")

_IDEAL = Link()


def simulate(
    size: int, body: Callable[["SimulatedGroup"], Result], *, link: Link = _IDEAL
) -> list[Result]:
    """Run `body(group)` on each of `size` ranks; returns their results, by rank.

    If ranks fail, the error of the lowest one that failed by itself is raised again.
    torch uses one thread per rank meanwhile.

    >>> simulate(3, lambda group: group.rank * group.size)
    [0, 3, 6]
    """
    if size < 1:
        raise GroupError(f"a group needs at least one rank, not {size}")
    scheduler = Scheduler(size, link)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def live(rank: int) -> None:
        scheduler.enter(rank)
        try:
            group = SimulatedGroup(scheduler, rank)
            results[rank] = body(group)
            group._early.check_empty()  # noqa: SLF001
        except BaseException as error:  # of any kind: it is raised in simulate()
            errors[rank] = error
            scheduler.fail(rank, error)
        finally:
            scheduler.leave(rank)

    threads = torch.get_num_threads()
    try:
        scheduler.run(live)
    finally:
        torch.set_num_threads(threads)
    if errors:
        rank = min(errors.keys() - scheduler.interrupted or errors)
        errors[rank].add_note(f"raised on simulated rank {rank} of {size}")
        raise errors[rank]
    scheduler.check_empty()
    return [results[rank] for rank in range(size)]


class SimulatedGroup(Group):
    """One rank of a simulation, made by `simulate`."""

    def __init__(self, scheduler: Scheduler, rank: int) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._early = EarlyReceives[bool]()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._scheduler.size

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        checks.check_exchange(self, body, dst=dst, src=src, nbytes=nbytes)
        if nbytes is None:
            self._early.check_empty()
        elif src is not None and nbytes:
            self._early.take(src, nbytes)
        if body is not None and dst == self._rank:
            return body.clone()
        outgoing = None
        if body is not None and dst is not None:
            outgoing = Message(self._rank, dst, body.clone())
        if nbytes is None:
            self._announce(outgoing, src)
        elif outgoing is not None and outgoing.nbytes == 0:
            outgoing = None  # no message at all, as on a real network
        if src is not None and nbytes == 0:
            self._scheduler.exchange(self._rank, outgoing, None)
            device = None if body is None else body.device
            return torch.empty(0, dtype=torch.uint8, device=device)
        return self._checked(
            self._scheduler.exchange(self._rank, outgoing, src), nbytes
        )

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Check only: calls that would hang real ranks are refused."""
        checks.check_receives(self, bodies)
        self._early.check_empty()
        for src, nbytes in bodies:
            if nbytes:
                self._early.add(src, nbytes, handle=True)

    def refuse_receives(self) -> None:
        self._early = EarlyReceives()

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        checks.check_all_to_all(self, bodies, nbytes)
        self._early.check_empty()
        lengths = None if nbytes is None else tuple(nbytes)
        copies = tuple(body.clone() for body in bodies)
        return self._scheduler.join(self._rank, AllToAll(copies, lengths))

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        checks.check_all_reduce(parts)
        self._early.check_empty()
        self._scheduler.join(self._rank, AllReduce(parts))

    def now(self) -> float:
        return float(self._scheduler.clocks.now[self._rank])

    def spend(self, seconds: float) -> None:
        """Move this rank's clock on, as if it had computed for `seconds`."""
        self._scheduler.clocks.now[self._rank] += seconds

    def _announce(self, outgoing: Message | None, src: int | None) -> None:
        """Exchange lengths; the body leaves when its length has arrived."""
        start = self.now()
        length = None
        if outgoing is not None:
            length = Message(outgoing.src, outgoing.dst, None)
        incoming = self._scheduler.exchange(self._rank, length, src)
        if incoming is not None and incoming.body is not None:
            raise GroupError(
                f"rank {self._rank} expects a length from rank {src}, "
                f"which sends {incoming.nbytes} bytes without one"
            )
        if length is not None:
            link = self._scheduler.clocks.link
            arrived = start + link.latency + link.transfer(length.nbytes)
            self._scheduler.clocks.wait_until(self._rank, arrived)

    def _checked(self, incoming: Message | None, nbytes: int | None) -> Tensor | None:
        if incoming is None:
            return None
        if incoming.body is None:
            raise GroupError(
                f"rank {self._rank} expects {nbytes} bytes from rank {incoming.src}, "
                "which sends a length ahead"
            )
        if nbytes not in (None, incoming.nbytes):
            raise GroupError(
                f"rank {self._rank} expects {nbytes} bytes from rank {incoming.src}, "
                f"which sends {incoming.nbytes}"
            )
        return incoming.body
