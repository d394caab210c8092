"""Clocks of simulated ranks: when a message is received, in seconds of the wire alone.

A sender's link is busy for bytes / bandwidth from the moment it sends; the receiver's
for as long, from one latency later or from when its link is free, whichever is later.
Collectives are rounds of pairwise messages, and a rank enters a round when it has sent
and received all of the round before.
"""

import heapq
import itertools
from collections import defaultdict, deque
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from thinwire.cost import Link
from thinwire.schedules import distances

Array = NDArray[np.float64]
Body = TypeVar("Body")


class Clocks:
    """The clock of every rank, and when its incoming link is free."""

    def __init__(self, size: int, link: Link) -> None:
        self.link = link
        self.now: Array = np.zeros(size)
        self._inbound_free: Array = np.zeros(size)

    def deliver(self, sent_at: float, dst: int, nbytes: int) -> float:
        """Book a message on the receiver's link; returns when it is received."""
        start = max(sent_at + self.link.latency, float(self._inbound_free[dst]))
        done = start + self.link.transfer(nbytes)
        self._inbound_free[dst] = done
        return done

    def wait_until(self, rank: int, time: float) -> None:
        """Move a rank's clock on to `time`, if it is earlier."""
        self.now[rank] = max(float(self.now[rank]), time)

    def direct(self, nbytes: NDArray[np.int64]) -> None:
        """All-to-all, `nbytes[src, dst]` each: in round s rank r sends to r + s."""
        size = len(self.now)
        ranks = np.arange(size)
        for shift in range(1, size):
            self._round(nbytes[ranks, (ranks + shift) % size], shift)

    def all_reduce(self, chunk: int, largest: int) -> None:
        """A ring, 2 (P - 1) rounds of one chunk to the next rank, or dissemination.

        What is disseminated beside a ring travels in the ring's first rounds.
        """
        size = len(self.now)
        ring = [1] * (2 * (size - 1)) if chunk else []
        for near, far in itertools.zip_longest(ring, distances(size), fillvalue=0):
            nbytes = (chunk if near else 0) + (largest if far else 0)
            self._round(np.full(size, nbytes), near or far)

    def _round(self, outgoing: NDArray[np.int64], shift: int) -> None:
        incoming = np.roll(outgoing, shift)
        arrival = np.roll(self.now, shift) + self.link.latency
        received = np.maximum(arrival, self._inbound_free) + self._transfer(incoming)
        sent = self.now + self._transfer(outgoing)
        # An empty body of known length is not sent.
        real = incoming > 0
        np.copyto(self._inbound_free, received, where=real)
        np.maximum(self.now, sent, out=self.now)
        np.maximum(self.now, received, out=self.now, where=real)

    def _transfer(self, nbytes: NDArray[np.int64]) -> Array:
        return nbytes / self.link.bandwidth


class Messages(Generic[Body]):
    """Messages on their way, booked on their receivers' links in order of time.

    Those with the smallest sender's clock are booked first. Their receivers are then at
    least that late, and so is all that they send later.
    """

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._order = itertools.count()
        self._sent: list[tuple[float, int, int, int, int, Body]] = []
        self._booked: defaultdict[tuple[int, int], deque[tuple[float, Body]]]
        self._booked = defaultdict(deque)

    def send(self, src: int, dst: int, nbytes: int, body: Body) -> None:
        """Send a message by the sender's clock."""
        start = float(self.clocks.now[src])
        heapq.heappush(self._sent, (start, src, next(self._order), dst, nbytes, body))

    def book(self) -> list[tuple[int, int]]:
        """Book the earliest messages; returns the sender and receiver of each."""
        booked: list[tuple[int, int]] = []
        earliest = self._sent[0][0] if self._sent else 0.0
        while self._sent and self._sent[0][0] == earliest:
            _, src, _, dst, nbytes, body = heapq.heappop(self._sent)
            done = self.clocks.deliver(earliest, dst, nbytes)
            self._booked[src, dst].append((done, body))
            booked.append((src, dst))
        return booked

    def receive(self, src: int, dst: int) -> Body | None:
        """The next booked message, if any; the receiver's clock waits for it."""
        box = self._booked[src, dst]
        if not box:
            return None
        done, body = box.popleft()
        self.clocks.wait_until(dst, done)
        return body

    def left(self) -> list[Body]:
        """The messages that were not received."""
        booked = [body for box in self._booked.values() for _, body in box]
        return booked + [entry[-1] for entry in self._sent]
