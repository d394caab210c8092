"""Whole reductions, from a gradient to its mean on all ranks, by real processes.

Every contestant is verified first: all ranks get the same bits, and what was delivered
and what is owed add up to what there was. Then contestants take turns, in an order that
is drawn anew for every repetition, so that noise hits all alike. A step is timed on
every rank from a common start; the slowest rank counts. Slow contestants get fewer
repetitions, spread over the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import hypot, log2
from random import Random
from statistics import fmean, median, quantiles
from time import perf_counter, process_time

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from thinwire.collectives.collective import check_density
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError, ReplicaError
from thinwire.groups.torch import TorchGroup
from thinwire.sparse import keep_count
from thinwire.tools.bench.contestants import Contestant, Entry, entries, make
from thinwire.tools.bench.gradients import Gradients
from thinwire.tools.bench.machine import machine
from thinwire.tools.bench.ranks import (
    Beat,
    Interface,
    Neighbours,
    Tell,
    gathered,
    slowest,
)

LEAST_REPEATS = 3
_PIECE = 1 << 20  # elements that are worked on at a time
_SUMS = 1 << 18  # of neighbours: so many are compared, not every element
_VALUE_BITS = 16
_BARRIERS = 9


@dataclass(frozen=True, slots=True)
class Settings:
    """What to compare; `seconds` is about how long one contestant may take in all."""

    size: int
    density: float = 0.01
    methods: Sequence[str] = ("spardl",)
    codecs: Sequence[str] = ()
    peers: Sequence[str] = ()
    repeats: int = 15
    seconds: float = 20.0
    place: str = "loopback"
    rate: int | None = None  # bits per second: of the links, or of those named
    seed: int = 0

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.size < 1:
            raise ConfigError(f"size is {self.size}: give the elements, 1 or more")
        if self.repeats < LEAST_REPEATS:
            raise ConfigError(
                f"{self.repeats} repeats: a spread needs {LEAST_REPEATS} or more"
            )
        if not self.seconds > 0:
            raise ConfigError(f"{self.seconds} seconds: give a time above 0")
        for entry in self.entries:
            entry.check(self.density)

    @property
    def entries(self) -> list[Entry]:
        """Everyone who takes part."""
        return entries(self.methods, self.codecs, self.peers)

    def check(self, ranks: int) -> None:
        """Refuse methods that do not work on so many ranks."""
        for entry in self.entries:
            entry.check(self.density, ranks)

    def measure(self, tell: Tell) -> "Result":
        """Measure, on every rank at once; every rank gets the result."""
        self.check(dist.get_world_size())
        race = Race(self, tell)
        race.verify()
        race.warm_up()
        race.run()
        return race.result()


@dataclass(frozen=True, slots=True)
class Row:
    """What one contestant took; seconds of the slowest rank, means of the rest."""

    label: str
    method: str
    codec: str | None
    peer: bool
    seconds: float  # the median
    low: float  # quartiles
    high: float
    walls: list[float]  # of every repetition, in order
    cpu: float  # a worker's processor time
    sent: int  # bytes counted by the method or its formula, the busiest rank
    rounds: int
    wire: int | None  # bytes that the interface sent, headers included; busiest rank
    phases: dict[str, float]
    error: float  # |delivered - mean| / |mean| with nothing remembered
    forecast: float | None  # processor time and wire, on a link that was named only


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one setting."""

    size: int
    density: float
    kept: int
    ranks: int
    hosts: int
    ranks_per_machine: int
    place: str
    rate: int | None
    floor: float  # bytes
    repeats: int
    machine: str
    date: str
    rows: list[Row]


def wire_floor(size: int, density: float, ranks: int) -> float:
    """Bytes a rank must send at least: 2 k (P - 1) / P entries of 16 bits and an index.

    An index takes the entropy of a list of this density.

    >>> round(wire_floor(14_700_000, 0.01, 8))
    774300
    """
    kept = keep_count(size, density)
    share = kept / size
    rest = (1 - share) * log2(1 - share) / share if share < 1 else 0.0
    entropy = -log2(share) - rest
    return 2 * kept * (ranks - 1) / ranks * (entropy + _VALUE_BITS) / 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One reduction on one rank."""

    wall: float
    cpu: float
    wire: int | None
    cost: Cost
    phases: dict[str, float]


@dataclass(slots=True)
class Lane:
    """A contestant and all that is known of it."""

    entry: Entry
    runner: Contestant
    error: float = 0.0
    estimate: float = 0.0  # seconds of a step
    samples: list[Sample] = field(default_factory=list)

    def turns(self, settings: Settings) -> set[int]:
        """The repetitions it takes part in: all of them, or a few, spread out.

        >>> lane = Lane(Entry("torch"), None, estimate=8.0)
        >>> sorted(lane.turns(Settings(size=1)))
        [0, 5, 10]
        """
        affordable = int(settings.seconds / max(self.estimate, 1e-9))
        count = min(settings.repeats, max(affordable, LEAST_REPEATS))
        return {turn * settings.repeats // count for turn in range(count)}


class Race:
    """All contestants of a setting, on this rank."""

    def __init__(self, settings: Settings, tell: Tell) -> None:
        self._settings, self._tell = settings, tell
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._neighbours = Neighbours.found()
        self._interface = Interface.own(self._neighbours)
        group = TorchGroup.own()
        size, density = settings.size, settings.density
        self._lanes = [
            Lane(entry, make(entry, size, density, group)) for entry in settings.entries
        ]
        self._gradients = Gradients(size, self._rank, settings.seed)
        self._fresh, self._grad = torch.empty(size), torch.empty(size)
        self._idle = self._count_idle()

    def verify(self) -> None:
        """Let everyone reduce once, and believe nobody."""
        self._gradients.fill_(self._fresh)
        check = Check(self._fresh, self._settings.seed)
        truth: Tensor | None = None
        for done, lane in enumerate(self._lanes):
            self._tell(Beat(f"verifying {lane.entry.label}", done, self._parts))
            lane.runner.reduce_(self._grad.copy_(self._fresh))
            check.alike(self._grad, lane.entry)
            check.conserved(self._grad, lane.runner, lane.entry)
            if truth is None:  # dense is first
                truth = self._grad.clone()
            lane.error = _distance(self._grad, truth)
            lane.runner.forget()

    def warm_up(self) -> None:
        """Let memories fill, and see who is slow."""
        for step in range(self._warm):
            place = len(self._lanes) + step
            self._tell(Beat(f"warming up {step + 1}", place, self._parts))
            self._gradients.fill_(self._fresh)
            for lane in self._lanes:
                if step < lane.runner.warm:
                    lane.estimate = self._step(lane).wall
        for lane in self._lanes:
            lane.estimate = slowest(lane.estimate)

    def run(self) -> None:
        """Everyone in turn, in a new order every time."""
        settings = self._settings
        turns = [lane.turns(settings) for lane in self._lanes]
        for repeat in range(settings.repeats):
            place = len(self._lanes) + self._warm + repeat
            self._tell(Beat(f"repetition {repeat + 1}", place, self._parts))
            self._gradients.fill_(self._fresh)
            order = list(zip(self._lanes, turns, strict=True))
            Random(f"{settings.seed} {repeat}").shuffle(order)  # alike on all ranks
            for lane, own in order:
                if repeat in own:
                    lane.samples.append(self._step(lane))

    def result(self) -> Result:
        """What all ranks have found together."""
        settings = self._settings
        rows = [self._row(lane) for lane in self._lanes]
        self._tell(Beat("done", self._parts, self._parts))
        return Result(
            size=settings.size,
            density=settings.density,
            kept=keep_count(settings.size, settings.density),
            ranks=self._size,
            hosts=len(set(self._neighbours.hosts)),
            ranks_per_machine=self._neighbours.ranks_per_machine,
            place=settings.place,
            rate=settings.rate,
            floor=wire_floor(settings.size, settings.density, self._size),
            repeats=settings.repeats,
            machine=machine(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=rows,
        )

    @property
    def _parts(self) -> int:
        return len(self._lanes) + self._warm + self._settings.repeats

    @property
    def _warm(self) -> int:
        return max(lane.runner.warm for lane in self._lanes)

    def _step(self, lane: Lane) -> Sample:
        self._grad.copy_(self._fresh)
        dist.barrier()
        before = self._sent()
        start, started = process_time(), perf_counter()
        lane.runner.reduce_(self._grad)
        wall, cpu = perf_counter() - started, process_time() - start
        dist.barrier()  # else some bytes would still be on their way
        wire = None if before is None else (self._sent() or 0) - before - self._idle
        cost = lane.runner.cost()
        return Sample(wall, cpu, wire, cost, lane.runner.phases(wall))

    def _sent(self) -> int | None:
        return None if self._interface is None else self._interface.sent()

    def _count_idle(self) -> int:
        """Bytes that are sent by a step in which nothing is reduced."""
        counts = []
        for _ in range(_BARRIERS if self._interface else 0):
            dist.barrier()
            before = self._sent() or 0
            dist.barrier()
            counts.append((self._sent() or 0) - before)
        return round(median(counts)) if counts else 0

    def _row(self, lane: Lane) -> Row:
        every: list[list[Sample]] = gathered(lane.samples)
        steps = list(zip(*every, strict=True))  # of each repetition, every rank's
        walls = [max(sample.wall for sample in step) for step in steps]
        low, middle, high = quantiles(walls, n=4, method="inclusive")
        samples = [sample for step in steps for sample in step]
        cpu = median(fmean(sample.cpu for sample in step) for step in steps)
        sent = max(sample.cost.nbytes for sample in samples)
        rounds = max(sample.cost.rounds for sample in samples)
        names = samples[0].phases
        return Row(
            label=lane.entry.label,
            method=lane.entry.method,
            codec=lane.entry.codec,
            peer=lane.entry.peer,
            seconds=middle,
            low=low,
            high=high,
            walls=walls,
            cpu=cpu,
            sent=sent,
            rounds=rounds,
            wire=_busiest(every),
            phases={
                name: median(fmean(s.phases[name] for s in step) for step in steps)
                for name in names
            },
            error=lane.error,
            forecast=self._forecast(cpu, Cost(rounds, sent)),
        )

    def _forecast(self, cpu: float, cost: Cost) -> float | None:
        """Where a link was named but not there: what its bytes would take on it."""
        settings = self._settings
        if settings.rate is None or settings.place != "loopback":
            return None
        return cpu + Link(bandwidth=settings.rate / 8).seconds(cost)


class Check:
    """What there was before anyone reduced, to compare with.

    Not element by element, which would be a dense all-reduce for every contestant, but
    in sums of neighbours with random signs, so that nothing cancels by chance.
    """

    def __init__(self, grad: Tensor, seed: int) -> None:
        size = grad.numel()
        self._chunk = max(1, size // _SUMS)
        generator = torch.Generator().manual_seed(seed)
        signs = torch.empty(size, dtype=torch.int8)
        self._signs = signs.random_(0, 2, generator=generator).mul_(2).sub_(1)
        self._before = _summed(self._sums(grad))
        self._stake = _summed(self._sums(grad, magnitudes=True))

    def alike(self, mean: Tensor, entry: Entry) -> None:
        """Refuse means that are not the same bits everywhere."""
        bits = xxhash.xxh3_64_hexdigest(mean.numpy().data)
        if len(set(gathered(bits))) > 1:
            raise ReplicaError(f"{entry.label}: ranks got different means")

    def conserved(self, mean: Tensor, runner: Contestant, entry: Entry) -> None:
        """Refuse a method that has lost something, or made something up."""
        if runner.tolerance is None:
            return
        ranks = dist.get_world_size()
        owed = runner.owed()
        found = ranks * self._sums(mean)
        stake = self._stake + ranks * self._sums(mean, magnitudes=True)
        if owed is not None:
            found += _summed(self._sums(owed))
            stake += _summed(self._sums(owed, magnitudes=True))
        gap = (found - self._before).abs()
        if not bool((gap <= runner.tolerance * stake).all()):
            worst = float((gap / stake).max())
            raise ReplicaError(
                f"{entry.label}: delivered and owed differ from what there was by "
                f"{worst:.1e} of it, more than {runner.tolerance:.1e}"
            )

    def _sums(self, vector: Tensor, *, magnitudes: bool = False) -> Tensor:
        sums = []
        # In parts: a copy of everything would not fit beside many contestants.
        pieces = (torch.split(each, self._piece) for each in (vector, self._signs))
        for part, signs in zip(*pieces, strict=True):
            # Cast first: to multiply mixed types takes twice as long.
            signed = part.abs() if magnitudes else part * signs.to(part.dtype)
            whole = signed.numel() // self._chunk * self._chunk
            rows = signed[:whole].view(-1, self._chunk)
            sums += [rows.sum(1, dtype=torch.float64)]
            sums += [signed[whole:].sum(dtype=torch.float64).view(1)]
        return torch.cat(sums)

    @property
    def _piece(self) -> int:
        return max(1, _PIECE // self._chunk) * self._chunk


def _summed(mine: Tensor) -> Tensor:
    total = mine.clone()
    dist.all_reduce(total)
    return total


def _distance(mean: Tensor, truth: Tensor) -> float:
    pieces = (torch.split(each, _PIECE) for each in (mean, truth))
    apart = [float((a - b).norm()) for a, b in zip(*pieces, strict=True)]
    length = float(torch.linalg.vector_norm(truth))
    return hypot(*apart) / length if length else 0.0


def _busiest(every: Sequence[Sequence[Sample]]) -> int | None:
    """The median bytes of the rank that sends the most."""
    counts = [[s.wire for s in samples if s.wire is not None] for samples in every]
    return max((round(median(own)) for own in counts if own), default=None)
