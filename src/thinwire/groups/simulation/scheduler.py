"""The world that simulated ranks share: whose turn it is, what waits for whom.

Only one rank runs at any moment: a rank that must wait hands the turn to the next one
that can go on. So nothing needs a lock, kernels that dislike being entered by two
threads are safe, and neither results nor clocks depend on the scheduler. When nobody
can go on, the messages with the smallest sender's clock are booked on their receivers'
links, in order of rank. Whoever they wake is then at least that late, and so is all
it sends later: messages are booked in the order of time. With no message left, either
all ranks stand in one collective, which is then completed, or they wait for ever.
"""

import heapq
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.cost import Link
from thinwire.errors import DeadlockError, GroupError
from thinwire.groups.checks import LENGTH_NBYTES
from thinwire.groups.simulation.clock import Clocks
from thinwire.groups.simulation.collectives import AllReduce, AllToAll

Call = AllToAll | AllReduce

_RANKS_NAMED = 16  # an error about 256 ranks names the first few


@dataclass(frozen=True, slots=True)
class Message:
    """A body on its way, or (body None) the length that travels ahead of one."""

    src: int
    dst: int
    body: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return LENGTH_NBYTES if self.body is None else self.body.numel()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why the simulation is over, to be raised on every rank."""

    kind: type[GroupError]
    message: str
    cause: BaseException | None = None


class World:
    """Turns, messages and clocks. Whoever has the turn may touch all of it."""

    def __init__(self, size: int, link: Link) -> None:
        self.size = size
        self.clocks = Clocks(size, link)
        self.told: set[int] = set()  # ranks that had to be told of another's failure
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._live = set(range(size))
        self._waiting: dict[int, int | Call] = {}  # for a rank's message, or in a call
        self._sent: list[tuple[float, int, int, Message]] = []
        self._order = itertools.count()
        self._received: defaultdict[tuple[int, int], deque[tuple[float, Message]]]
        self._received = defaultdict(deque)
        self._outcomes: dict[int, list[Tensor]] = {}
        self._verdict: _Verdict | None = None

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
            # Not this thread's turn: the ranks find the verdict at their next calls.
            self._verdict = _Verdict(GroupError, f"interrupted: {error!r}", error)
            raise

    def enter(self, rank: int) -> None:
        """Wait for this rank's first turn."""
        self._turns[rank].acquire()
        # Each thread would otherwise start a pool of its own, hundreds of threads in
        # all; and sums would depend on the number of cores.
        torch.set_num_threads(1)

    def leave(self, rank: int) -> None:
        """Give the turn away for good."""
        self._live.discard(rank)
        if self._live:
            self._turns[self._next()].release()

    def fail(self, rank: int, error: BaseException) -> None:
        """Make every other rank's next call, or the one it stands in, raise."""
        self._judge(_Verdict(GroupError, f"rank {rank} failed: {error!r}", error))

    def exchange(
        self, rank: int, outgoing: Message | None, src: int | None
    ) -> Message | None:
        """Send one message, wait for one from `src`, and for the link to be free."""
        self._raise_verdict(rank)
        start = float(self.clocks.now[rank])
        if outgoing is not None:
            entry = (start, rank, next(self._order), outgoing)
            heapq.heappush(self._sent, entry)
        incoming = None if src is None else self._receive(rank, src)
        if outgoing is not None:
            busy = self.clocks.link.transfer(outgoing.nbytes)
            self.clocks.wait_until(rank, start + busy)
        return incoming

    def meet(self, rank: int, call: Call) -> list[Tensor]:
        """Stand in a collective until every rank does; this rank's outcome."""
        self._raise_verdict(rank)
        self._wait(rank, call)
        if rank not in self._outcomes:
            self._raise_verdict(rank)
        return self._outcomes.pop(rank)

    def check_empty(self) -> None:
        """Refuse to end with a message that nobody asked for."""
        booked = (message for box in self._received.values() for _, message in box)
        for message in itertools.chain(booked, (entry[-1] for entry in self._sent)):
            raise GroupError(
                f"rank {message.src} sent {message.nbytes} bytes to rank "
                f"{message.dst}, which never asked for them"
            )

    def _receive(self, rank: int, src: int) -> Message:
        box = self._received[src, rank]
        if not box:
            self._wait(rank, src)
        if not box:
            self._raise_verdict(rank)
        done, message = box.popleft()
        self.clocks.wait_until(rank, done)
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
            except Exception as error:  # the ranks must not wait for a broken world
                self._judge(_Verdict(GroupError, str(error), error))
        return self._ready.popleft()

    def _advance(self) -> None:
        """Let at least one rank go on, or book at least one message."""
        if self._verdict is not None:
            self._wake_all()
        elif self._sent:
            self._book_earliest()
        else:
            calls = [
                call
                for _, call in sorted(self._waiting.items())
                if not isinstance(call, int)
            ]
            if len(calls) < self.size:
                self._judge(_Verdict(DeadlockError, self._who_waits()))
            else:
                self._complete(calls)

    def _book_earliest(self) -> None:
        earliest = self._sent[0][0]
        while self._sent and self._sent[0][0] == earliest:
            message = heapq.heappop(self._sent)[-1]
            done = self.clocks.deliver(earliest, message.dst, message.nbytes)
            self._received[message.src, message.dst].append((done, message))
            if self._waiting.get(message.dst) == message.src:
                self._wake(message.dst)

    def _complete(self, calls: list[Call]) -> None:
        for rank, call in enumerate(calls):
            if type(call) is not type(calls[0]):
                raise GroupError(
                    f"rank 0 calls {calls[0].name}, rank {rank} calls {call.name}"
                )
        outcomes = type(calls[0]).complete(calls, self.clocks)  # type: ignore[arg-type]
        self._outcomes = dict(enumerate(outcomes))
        self._wake_all()

    def _judge(self, verdict: _Verdict) -> None:
        self._verdict = self._verdict or verdict
        self._wake_all()

    def _raise_verdict(self, rank: int) -> None:
        if self._verdict is not None:
            self.told.add(rank)
            raise self._verdict.kind(self._verdict.message) from self._verdict.cause

    def _wake(self, rank: int) -> None:
        del self._waiting[rank]
        self._ready.append(rank)

    def _wake_all(self) -> None:
        for rank in sorted(self._waiting):
            self._wake(rank)

    def _who_waits(self) -> str:
        named = range(min(self.size, _RANKS_NAMED))
        more = [f"and {self.size - len(named)} more"] if self.size > len(named) else []
        return "nobody can go on: " + "; ".join([*map(self._status, named), *more])

    def _status(self, rank: int) -> str:
        reason = self._waiting.get(rank)
        if reason is None:
            return f"rank {rank} has returned"
        if isinstance(reason, int):
            return f"rank {rank} waits for a message from rank {reason}"
        return f"rank {rank} stands in {reason.name}"
