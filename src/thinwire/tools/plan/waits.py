"""When the last rank is done, where ranks wait as no sum of rounds says.

gTop-k's tree and its folded butterfly, on a number of ranks that is no power of two: a
card's rounds and bytes are off by up to a third there. So their schedules are played,
message by message, by the rules of the simulated group's clocks.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from thinwire.cost import Link
from thinwire.schedules import Step


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
    """Every rank's clock, when its incoming link is free, and messages on their way."""

    def __init__(self, ranks: int, latency: float, busy: float) -> None:
        self.now = [0.0] * ranks
        self.sent: list[tuple[float, int, int]] = []
        self._free = [0.0] * ranks
        self._arrived: defaultdict[tuple[int, int], deque[float]] = defaultdict(deque)
        self._latency, self._busy = latency, busy

    def live(self, rank: int, steps: Sequence[Step]) -> Iterator[int]:
        """Take steps; yields a rank whenever its message is missing."""
        for dst, src, *_ in steps:
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
        """Book the earliest message; returns its sender and its receiver.

        The receiver is then at least as late, so messages are booked in order of time.
        """
        start, src, dst = heapq.heappop(self.sent)
        self._free[dst] = max(start + self._latency, self._free[dst]) + self._busy
        self._arrived[src, dst].append(self._free[dst])
        return src, dst

    def _wait_until(self, rank: int, time: float) -> None:
        self.now[rank] = max(self.now[rank], time)
