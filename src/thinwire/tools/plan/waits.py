"""When the last rank is done where ranks wait for each other as no sum of rounds says.

gTop-k's tree and its folded butterfly, on a number of ranks that is no power of two: a
card's rounds and bytes are then off by up to a third. So who sends to whom is played
through, message by message, by the rules of the simulated group's clocks.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from thinwire.cost import Link

Step = tuple[int | None, int | None]
"""A rank to send a message to, and one to wait for a message from, both at once."""


def tree(rank: int, ranks: int) -> list[Step]:
    """Up a binomial tree to rank 0, and down again.

    >>> tree(2, 4)
    [(None, 3), (0, None), (None, 0), (3, None)]
    """
    depth = (ranks - 1).bit_length()
    height = depth if rank == 0 else (rank & -rank).bit_length() - 1
    children = [rank + 2**level for level in range(height) if rank + 2**level < ranks]
    steps: list[Step] = [(None, child) for child in children]
    if rank != 0:
        parent = rank - 2**height
        steps += [(parent, None), (None, parent)]
    return steps + [(child, None) for child in reversed(children)]


def butterfly(rank: int, ranks: int) -> list[Step]:
    """Ranks beyond a power of two give to others first and are told at the end.

    >>> butterfly(0, 3), butterfly(2, 3)
    ([(None, 2), (1, 1), (2, None)], [(0, None), (None, 0)])
    """
    doublings = ranks.bit_length() - 1
    core = 2**doublings
    if rank >= core:
        return [(rank - core, None), (None, rank - core)]
    swaps: list[Step] = [(rank ^ 2**i, rank ^ 2**i) for i in range(doublings)]
    guest = rank + core
    return [(None, guest), *swaps, (guest, None)] if guest < ranks else swaps


def seconds(steps: Sequence[Sequence[Step]], nbytes: int, link: Link) -> float:
    """Until all ranks have taken their steps, with messages of `nbytes`."""
    play = _Play(len(steps), link.latency, link.transfer(nbytes))
    lives = [play.live(rank, steps[rank]) for rank in range(len(steps))]
    awaited = [next(life, None) for life in lives]
    while play.sent:
        src, dst = play.deliver()
        if awaited[dst] == src:
            awaited[dst] = next(lives[dst], None)
    return max(play.now)


class _Play:
    """Every rank's clock, when its incoming link is free, and what is on its way."""

    def __init__(self, ranks: int, latency: float, busy: float) -> None:
        self.now = [0.0] * ranks
        self.sent: list[tuple[float, int, int]] = []
        self._free = [0.0] * ranks
        self._arrived: defaultdict[tuple[int, int], deque[float]] = defaultdict(deque)
        self._latency, self._busy = latency, busy

    def live(self, rank: int, steps: Sequence[Step]) -> Iterator[int]:
        """Take steps until a message is missing; from whom."""
        for dst, src in steps:
            start = self.now[rank]
            if dst is not None:
                heapq.heappush(self.sent, (start, rank, dst))
            if src is not None:
                box = self._arrived[src, rank]
                while not box:
                    yield src
                self._wait_until(rank, box.popleft())
            if dst is not None:
                self._wait_until(rank, start + self._busy)

    def deliver(self) -> tuple[int, int]:
        """Book the earliest message; from whom to whom it is.

        Whoever it wakes is at least as late, so messages are booked in order of time.
        """
        start, src, dst = heapq.heappop(self.sent)
        self._free[dst] = max(start + self._latency, self._free[dst]) + self._busy
        self._arrived[src, dst].append(self._free[dst])
        return src, dst

    def _wait_until(self, rank: int, time: float) -> None:
        self.now[rank] = max(self.now[rank], time)
