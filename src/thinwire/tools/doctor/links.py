"""Whether ranks reach each other where Gloo will connect them, and how fast.

Up to eight ranks, every pair is measured while all others are silent. Of more ranks,
each is measured with the next.
"""

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import median

from thinwire.tools.bench.net import rounds
from thinwire.tools.doctor.answering import (
    PATIENCE,
    REPLY,
    REQUEST,
    prepare,
    receive,
    send,
    take,
)
from thinwire.tools.doctor.facts import Facts, known
from thinwire.tools.doctor.meeting import Meeting

_MOST_IN_PAIRS = 8  # ranks
_PINGS, _PING_SECONDS = 20, 0.2
_FIRST_NBYTES, _MOST_NBYTES, _LONGER = 1 << 16, 1 << 28, 4
_LONG_SECONDS = 0.05  # a transfer that says something about bandwidth

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Two ranks, as the first one measured: seconds, and bytes per second."""

    first: int
    second: int
    why: str = ""  # they cannot talk, or could not finish
    latency: float = 0.0  # one way
    there: float = 0.0
    back: float = 0.0
    ahead: float = 0.0  # seconds by which the clock of `second` is ahead
    unsure: float = 0.0  # at most so many seconds more or less

    @property
    def slower(self) -> float:
        """Bytes per second in the slower direction."""
        return min(self.there, self.back)


def measure(meeting: Meeting, every: Mapping[int, Facts]) -> list[Link]:
    """Measure with all ranks, which call this together; all get the same links."""
    turns = list(schedule(meeting.size))
    pairs = [pair for turn in turns for pair in turn]
    mine = [pair for pair in pairs if pair[0] == meeting.rank]
    with ThreadPoolExecutor(max(len(mine), 1)) as pool:
        tried = pool.map(lambda pair: attempt(pair, every, pings=1), mine)
        links = dict(zip(mine, tried, strict=True))
    meeting.gather("reached")
    for number, turn in enumerate(turns):
        for pair in turn:
            if pair in links and not links[pair].why:
                links[pair] = attempt(pair, every)
        meeting.gather(f"turn {number}")
    told = meeting.gather("links", [asdict(link) for link in links.values()])
    return [known(Link, link) for links in told.values() for link in links]


def schedule(ranks: int) -> Iterator[list[Pair]]:
    """Turns, and the pairs that are measured in each.

    >>> list(schedule(3))
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    >>> list(schedule(9))[1:]
    [[(1, 2), (3, 4), (5, 6), (7, 8)], [(8, 0)]]
    """
    if ranks <= _MOST_IN_PAIRS:
        turns = ([pair for pair in turn if pair[0] < pair[1]] for turn in rounds(ranks))
        yield from filter(None, turns)
        return
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    last = [ring.pop()] if ranks % 2 else []
    yield from (turn for turn in (ring[::2], ring[1::2], last) if turn)


def attempt(pair: Pair, every: Mapping[int, Facts], pings: int = _PINGS) -> Link:
    """A link; only whether it works if there is but one ping."""
    link = Link(*pair)
    peer = every[pair[1]]
    if not peer.port:
        return replace(link, why="no address to connect to")
    try:
        with closing(_connect(peer)) as connection:
            found = _ping(connection, link, pings)
            if pings == 1:
                return found
            there = _rate(connection, b"u", found.latency)
            back = _rate(connection, b"d", found.latency)
            return replace(found, there=there, back=back)
    except TimeoutError:
        return replace(link, why=f"no answer in {PATIENCE:g} s")
    except OSError as error:
        return replace(link, why=(error.strerror or str(error)).lower())


def _connect(peer: Facts) -> socket.socket:
    where = (peer.interface.address, peer.port)
    connection = socket.create_connection(where, PATIENCE)
    prepare(connection)
    return connection


def _ping(connection: socket.socket, link: Link, count: int) -> Link:
    """Latency; and the difference of the clocks, by the quickest round trip."""
    trips: list[tuple[float, float]] = []
    end = time.perf_counter() + _PING_SECONDS
    while not trips or (len(trips) < count and time.perf_counter() < end):
        sent = time.time()
        seconds, clock = _ask(connection, link.second, b"d", 0)
        trips.append((seconds, clock - (sent + seconds / 2)))
    quickest, ahead = min(trips)
    latency = median(seconds for seconds, _ in trips) / 2
    return replace(link, latency=latency, ahead=ahead, unsure=quickest / 2)


def _rate(connection: socket.socket, kind: bytes, latency: float) -> float:
    """Bytes per second of a message that takes long enough."""
    nbytes = _FIRST_NBYTES
    while True:
        seconds, _ = _ask(connection, None, kind, nbytes)
        if seconds > _LONG_SECONDS or nbytes >= _MOST_NBYTES:
            return nbytes / max(seconds - 2 * latency, 1e-9)
        nbytes *= _LONGER


def _ask(
    connection: socket.socket, peer: int | None, kind: bytes, nbytes: int
) -> tuple[float, float]:
    """Seconds of a request, and the other rank's clock at its end."""
    start = time.perf_counter()
    connection.sendall(REQUEST.pack(kind, nbytes))
    (send if kind == b"u" else take)(connection, nbytes)
    reply = receive(connection, REPLY.size)
    seconds = time.perf_counter() - start
    if not reply:
        raise ConnectionResetError("the other rank has closed the connection")
    clock, rank = REPLY.unpack(reply)
    if peer is not None and rank != peer:
        raise ConnectionError(f"rank {rank} answers there")
    return seconds, clock


def worst(links: Sequence[Link], most: int) -> list[Link]:
    """Those to look at first: links that do not work, then the slowest."""
    return sorted(links, key=lambda link: (not link.why, link.slower))[:most]
