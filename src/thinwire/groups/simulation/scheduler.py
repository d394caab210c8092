"""The scheduler of simulated ranks: which rank runs, and what the others wait for.

Only one rank runs at any moment: a rank that must wait lets the next one run that can.
So no locks are needed, only one thread is in a kernel, and neither results nor clocks
depend on the system's scheduler. When no rank can run, messages are delivered over the
links of their receivers. If there is no message either, all ranks wait in one
collective, which is then completed, or this is a deadlock.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.cost import Link
from thinwire.errors import DeadlockError, GroupError
from thinwire.groups.checks import LENGTH_NBYTES
from thinwire.groups.simulation.clock import Clocks, Messages
from thinwire.groups.simulation.collectives import AllReduce, AllToAll

Call = AllToAll | AllReduce

_RANKS_NAMED = 16  # an error about 256 ranks names the first few


@dataclass(frozen=True, slots=True)
class Message:
    """A body that was sent or, if body is None, the length that precedes one."""

    src: int
    dst: int
    body: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return LENGTH_NBYTES if self.body is None else self.body.numel()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the simulation is over, to be raised on every rank."""

    kind: type[GroupError]
    message: str
    cause: BaseException | None = None


class Scheduler:
    """Messages and clocks of all ranks; only the rank that runs may use it."""

    def __init__(self, size: int, link: Link) -> None:
        self.size = size
        self.clocks = Clocks(size, link)
        self.interrupted: set[int] = set()  # ranks that another's failure has stopped
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._live = set(range(size))
        self._waiting: dict[int, int | Call] = {}  # for a rank's message, or in a call
        self._messages = Messages[Message](self.clocks)
        self._outcomes: dict[int, list[Tensor]] = {}
        self._failure: _Failure | None = None

    def run(self, live: Callable[[int], None]) -> None:
        """Start a thread `live(rank)` for every rank and wait for all of them."""
        threads = [
            threading.Thread(
                target=live, args=(rank,), daemon=True, name=f"rank {rank}"
            )
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        self._turns[self._next()].release()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:
            # Not this thread's turn: the ranks find the failure at their next calls.
            self._failure = _Failure(GroupError, f"interrupted: {error!r}", error)
            raise

    def enter(self, rank: int) -> None:
        """Wait for this rank's first turn."""
        self._turns[rank].acquire()
        # Each thread would otherwise start a pool of its own, hundreds of threads in
        # all; and sums would depend on the number of cores.
        torch.set_num_threads(1)

    def leave(self, rank: int) -> None:
        """Let other ranks run; this one does not run again."""
        self._live.discard(rank)
        if self._live:
            self._turns[self._next()].release()

    def fail(self, rank: int, error: BaseException) -> None:
        """Make the current or next call of every other rank raise."""
        self._abort(_Failure(GroupError, f"rank {rank} failed: {error!r}", error))

    def exchange(
        self, rank: int, outgoing: Message | None, src: int | None
    ) -> Message | None:
        """Send one message, wait for one from `src`, and for the link to be free."""
        self._raise_failure(rank)
        start = float(self.clocks.now[rank])
        if outgoing is not None:
            self._messages.send(rank, outgoing.dst, outgoing.nbytes, outgoing)
        incoming = None if src is None else self._receive(rank, src)
        if outgoing is not None:
            busy = self.clocks.link.transfer(outgoing.nbytes)
            self.clocks.wait_until(rank, start + busy)
        return incoming

    def join(self, rank: int, call: Call) -> list[Tensor]:
        """Wait in a collective until every rank does; returns this rank's outcome."""
        self._raise_failure(rank)
        self._wait(rank, call)
        if rank not in self._outcomes:
            self._raise_failure(rank)
        return self._outcomes.pop(rank)

    def check_empty(self) -> None:
        """Refuse to end with a message that was not received."""
        for message in self._messages.left():
            raise GroupError(
                f"rank {message.src} sent {message.nbytes} bytes to rank "
                f"{message.dst}, which never asked for them"
            )

    def _receive(self, rank: int, src: int) -> Message:
        while (message := self._messages.receive(src, rank)) is None:
            self._raise_failure(rank)
            self._wait(rank, src)
        return message

    def _wait(self, rank: int, reason: int | Call) -> None:
        self._waiting[rank] = reason
        following = self._next()
        if following != rank:
            self._turns[following].release()
            self._turns[rank].acquire()

    def _next(self) -> int:
        while not self._ready:
            try:
                self._advance()
            except Exception as error:  # the ranks must not wait for a broken scheduler
                self._abort(_Failure(GroupError, str(error), error))
        return self._ready.popleft()

    def _advance(self) -> None:
        """Let at least one rank go on, or book at least one message."""
        if self._failure is not None:
            self._wake_all()
            return
        booked = self._messages.book()
        for src, dst in booked:
            if self._waiting.get(dst) == src:
                self._wake(dst)
        if not booked:
            waiting = [call for _, call in sorted(self._waiting.items())]
            calls = [call for call in waiting if not isinstance(call, int)]
            if len(calls) < self.size:
                self._abort(_Failure(DeadlockError, self._describe()))
            else:
                self._complete(calls)

    def _complete(self, calls: list[Call]) -> None:
        for rank, call in enumerate(calls):
            if type(call) is not type(calls[0]):
                raise GroupError(
                    f"rank 0 calls {calls[0].name}, rank {rank} calls {call.name}"
                )
        outcomes = type(calls[0]).complete(calls, self.clocks)  # type: ignore[arg-type]
        self._outcomes = dict(enumerate(outcomes))
        self._wake_all()

    def _abort(self, failure: _Failure) -> None:
        self._failure = self._failure or failure
        self._wake_all()

    def _raise_failure(self, rank: int) -> None:
        if self._failure is not None:
            self.interrupted.add(rank)
            raise self._failure.kind(self._failure.message) from self._failure.cause

    def _wake(self, rank: int) -> None:
        del self._waiting[rank]
        self._ready.append(rank)

    def _wake_all(self) -> None:
        for rank in sorted(self._waiting):
            self._wake(rank)

    def _describe(self) -> str:
        named = range(min(self.size, _RANKS_NAMED))
        more = [f"and {self.size - len(named)} more"] if self.size > len(named) else []
        return "no rank can go on: " + "; ".join([*map(self._status, named), *more])

    def _status(self, rank: int) -> str:
        reason = self._waiting.get(rank)
        if reason is None:
            return f"rank {rank} has returned"
        if isinstance(reason, int):
            return f"rank {rank} waits for a message from rank {reason}"
        return f"rank {rank} waits in {reason.name}"
