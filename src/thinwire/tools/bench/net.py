"""Measurements of a network: latency, pairs, all ranks at once, rounds, flows.

Every transfer is longer than the burst of a shaped or buffered link. Its sender times
it until the receiver has replied. Up to eight ranks, pairs take turns while all others
are silent; more ranks pair off and measure side by side.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.groups.torch import TorchGroup
from thinwire.tools import round_timing
from thinwire.tools.bench.ranks import (
    Neighbours,
    OnProgress,
    ProgressEvent,
    gathered,
    slowest,
)
from thinwire.tools.profile import Profile

_MOST_ALONE = 8  # ranks: beyond, pairs take too long one after the other
_PINGS = 30
_FIRST_NBYTES = 1 << 16
_MOST_NBYTES = 1 << 26
_LONG_SECONDS = 0.06  # a transfer that says something about bandwidth
_SURELY = 1.3
_REPEATS = 3
_RING_REPEATS = 5
_FLOWS = 4

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """Whether a lab shapes the links; ranks cannot measure that."""

    shaped: bool = False

    def measure(self, on_progress: OnProgress) -> Profile:
        """Measure, on every rank at once; every rank gets the profile."""
        ranks = dist.get_world_size()
        if ranks < 2:  # noqa: PLR2004
            raise ConfigError("1 rank: a network needs at least 2")
        neighbours = Neighbours.found()
        schedule = list(rounds(ranks))
        total = len(schedule) + 3
        pings, rates = [], []
        for done, pairs in enumerate(schedule):
            on_progress(ProgressEvent("pairs", done, total))
            ping, rate = _measure_pairs(pairs)
            pings.append(ping)
            rates.append(rate)
        latencies, bandwidths = _matrix(schedule, pings), _matrix(schedule, rates)
        pair = median(_others(bandwidths))
        on_progress(ProgressEvent("all at once", total - 3, total))
        together = _ring(pair)
        on_progress(ProgressEvent("rounds", total - 2, total))
        rounds_ = round_timing.measure(TorchGroup())
        on_progress(ProgressEvent("one flow and several", total - 1, total))
        flow, flows = _flows(_distant(neighbours.hosts), pair)
        on_progress(ProgressEvent("done", total, total))
        return Profile(
            latency=median(_others(latencies)),
            pair=pair,
            together=together,
            flow=flow,
            flows=flows,
            latencies=latencies,
            bandwidths=bandwidths,
            exchange=rounds_.exchange,
            direct=rounds_.direct,
            all_reduce=rounds_.all_reduce,
            ranks=ranks,
            hosts=len(set(neighbours.hosts)),
            ranks_per_host=neighbours.ranks_per_host,
            ranks_per_machine=neighbours.ranks_per_machine,
            cores=gathered(os.cpu_count() or 1)[0],
            shaped=self.shaped,
            backend=str(dist.get_backend()),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def rounds(ranks: int) -> Iterator[list[Pair]]:
    """Every ordered pair once; in a round no rank has two partners.

    >>> list(rounds(2))
    [[(0, 1)], [(1, 0)]]
    >>> sorted(pair for each in rounds(12) for pair in each) == [
    ...     (a, b) for a in range(12) for b in range(12) if a != b
    ... ]
    True
    """
    for pairs in _tournament(ranks):
        for way in (pairs, [(b, a) for a, b in pairs]):
            if ranks > _MOST_ALONE:
                yield way
            else:
                yield from ([pair] for pair in way)


def _tournament(ranks: int) -> Iterator[list[Pair]]:
    """The circle method: one stays, the others move on by one seat."""
    seats = list(range(ranks + ranks % 2))
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        across = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairs = [pair for pair in across if max(pair) < ranks]
        if pairs:
            yield pairs
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _measure_pairs(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Latency and bandwidth of this rank's pair, as its sender; else zeros."""
    dist.barrier()
    mine = next((pair for pair in pairs if dist.get_rank() in pair), None)
    if mine is None:
        return 0.0, 0.0
    return (_send if dist.get_rank() == mine[0] else _answer)(mine)


def _send(pair: Pair) -> tuple[float, float]:
    _, peer = pair
    small = torch.zeros(1, dtype=torch.uint8)
    pings = [_clocked(partial(_ask, small, peer)) for _ in range(_PINGS)]
    latency = median(pings) / 2
    nbytes, took = _FIRST_NBYTES, 0.0
    while True:
        body = torch.zeros(nbytes, dtype=torch.uint8)
        times = [_clocked(partial(_ask, body, peer)) for _ in range(_REPEATS)]
        took = median(times)
        more = took < _LONG_SECONDS and nbytes < _MOST_NBYTES
        _tell(peer, goes_on=more)
        if not more:
            return latency, nbytes / max(took - 2 * latency, 1e-9)
        nbytes = _longer(nbytes, took)
        dist.send(torch.tensor([nbytes]), peer)


def _longer(nbytes: int, took: float) -> int:
    """A larger number of bytes, after one that took too little time."""
    wanted = nbytes * _SURELY * _LONG_SECONDS / took
    return int(min(max(wanted, 2 * nbytes), _MOST_NBYTES))


def _answer(pair: Pair) -> tuple[float, float]:
    peer, _ = pair
    for _ in range(_PINGS):
        _reply(torch.zeros(1, dtype=torch.uint8), peer)
    nbytes, goes_on = torch.tensor([_FIRST_NBYTES]), torch.tensor([1])
    while goes_on:
        body = torch.empty(int(nbytes), dtype=torch.uint8)
        for _ in range(_REPEATS):
            _reply(body, peer)
        dist.recv(goes_on, peer)
        if goes_on:
            dist.recv(nbytes, peer)
    return 0.0, 0.0


def _ask(body: Tensor, peer: int) -> None:
    dist.send(body, peer)
    dist.recv(torch.empty(1, dtype=torch.uint8), peer)


def _reply(body: Tensor, peer: int) -> None:
    dist.recv(body, peer)
    dist.send(torch.zeros(1, dtype=torch.uint8), peer)


def _tell(peer: int, *, goes_on: bool) -> None:
    dist.send(torch.tensor([int(goes_on)]), peer)


def _clocked(call: Callable[[], None]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _matrix(
    schedule: Sequence[Sequence[Pair]], mine: Sequence[float]
) -> tuple[tuple[float, ...], ...]:
    """The matrix of what the senders measured."""
    every = gathered(list(mine))
    ranks = len(every)
    found = [[0.0] * ranks for _ in range(ranks)]
    for turn, pairs in enumerate(schedule):
        for sender, receiver in pairs:
            found[sender][receiver] = every[sender][turn]
    return tuple(map(tuple, found))


def _others(matrix: Sequence[Sequence[float]]) -> list[float]:
    return [
        value
        for sender, row in enumerate(matrix)
        for receiver, value in enumerate(row)
        if sender != receiver
    ]


def _ring(pair: float) -> float:
    """Bytes per second of the slowest rank while each sends to the next."""
    rank, size = dist.get_rank(), dist.get_world_size()
    nbytes = _agreed_nbytes(pair)
    body = torch.zeros(nbytes, dtype=torch.uint8)
    room = torch.empty_like(body)

    def pass_on() -> None:
        works = [
            dist.irecv(room, (rank - 1) % size),
            dist.isend(body, (rank + 1) % size),
        ]
        for work in works:
            assert work is not None
            work.wait()

    times = []
    for _ in range(_RING_REPEATS):
        dist.barrier()
        times.append(slowest(_clocked(pass_on)))
    return nbytes / median(times)


def _flows(pair: Pair, rate: float) -> tuple[float, float]:
    """Bytes per second over one connection between two ranks, and over several."""
    groups = [dist.new_group(list(pair)) for _ in range(_FLOWS)]
    nbytes = _agreed_nbytes(rate)
    one = _share_out(pair, groups[:1], nbytes)
    return one, _share_out(pair, groups, nbytes)


def _share_out(pair: Pair, groups: Sequence[dist.ProcessGroup], nbytes: int) -> float:
    """Bytes per second from the first of the pair; returned on all ranks."""
    sender, receiver = pair
    rank = dist.get_rank()
    parts = torch.zeros(nbytes, dtype=torch.uint8).tensor_split(len(groups))

    def transfer() -> None:
        if rank not in pair:
            return
        start = dist.isend if rank == sender else dist.irecv
        peer = receiver if rank == sender else sender
        works = [
            start(part, peer, group=group)
            for part, group in zip(parts, groups, strict=True)
        ]
        for work in works:
            assert work is not None
            work.wait()

    times = []
    for _ in range(_RING_REPEATS):
        dist.barrier()
        times.append(slowest(_clocked(transfer)))
    return nbytes / median(times)


def _agreed_nbytes(rate: float) -> int:
    """Bytes that take about twice as long as a transfer has to."""
    wanted = round(2 * _LONG_SECONDS * rate)
    return int(gathered(min(max(wanted, _FIRST_NBYTES), 2 * _MOST_NBYTES))[0])


def _distant(hosts: Sequence[int]) -> Pair:
    """Two ranks with a network between them, where there are such."""
    other = next((rank for rank, host in enumerate(hosts) if host != hosts[0]), 1)
    return 0, other
