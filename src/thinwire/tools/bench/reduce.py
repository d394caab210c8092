"""Whole reductions, from a gradient to its mean on all ranks, by real processes.

Every method is verified first: all ranks get the same bits, and delivered plus residual
add up to the gradients. Then methods take turns, in a new random order for every
repetition, so that noise affects all of them equally. A step is timed on every rank
from a common start; the slowest rank counts. Slow methods get fewer repetitions, spread
over the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from statistics import fmean, median, quantiles
from time import perf_counter, process_time

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.collectives.collective import check_density
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError
from thinwire.groups.torch import TorchGroup
from thinwire.sparse import keep_count
from thinwire.tools.bench.gradients import Gradients
from thinwire.tools.bench.machine import machine
from thinwire.tools.bench.methods import Method, MethodSpec, build, method_specs
from thinwire.tools.bench.ranks import (
    Interface,
    Neighbours,
    OnProgress,
    ProgressEvent,
    gathered,
    slowest,
)
from thinwire.tools.bench.reduce_result import Result, Row, Sample, wire_floor
from thinwire.tools.bench.verification import Verifier, distance

LEAST_REPEATS = 3
_BARRIERS = 9


@dataclass(frozen=True, slots=True)
class Settings:
    """What to compare; `seconds` is about how long one method may take in all."""

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
            raise ConfigError(f"{self.size} parameters: give 1 or more")
        if self.repeats < LEAST_REPEATS:
            raise ConfigError(
                f"{self.repeats} repeats: a spread needs {LEAST_REPEATS} or more"
            )
        if not self.seconds > 0:
            raise ConfigError(f"{self.seconds} seconds: give a time above 0")
        for spec in self.specs:
            spec.check(self.density)

    @property
    def specs(self) -> list[MethodSpec]:
        """All methods to compare."""
        return method_specs(self.methods, self.codecs, self.peers)

    def check(self, ranks: int) -> None:
        """Raise `ConfigError` for methods that cannot run on `ranks`."""
        for spec in self.specs:
            spec.check(self.density, ranks)

    def measure(self, on_progress: OnProgress) -> Result:
        """Measure, on every rank at once; every rank gets the result."""
        self.check(dist.get_world_size())
        comparison = Comparison(self, on_progress)
        comparison.verify()
        comparison.warm_up()
        comparison.run()
        return comparison.result()


@dataclass(slots=True)
class MethodRun:
    """A method and its measurements so far."""

    spec: MethodSpec
    method: Method
    error: float = 0.0
    estimate: float = 0.0  # seconds of a step
    samples: list[Sample] = field(default_factory=list)

    def turns(self, settings: Settings) -> set[int]:
        """The repetitions it takes part in: all of them, or a few, spread out.

        >>> run = MethodRun(MethodSpec("torch"), None, estimate=8.0)
        >>> sorted(run.turns(Settings(size=1)))
        [0, 5, 10]
        """
        affordable = int(settings.seconds / max(self.estimate, 1e-9))
        count = min(settings.repeats, max(affordable, LEAST_REPEATS))
        return {turn * settings.repeats // count for turn in range(count)}


class Comparison:
    """Measures all methods of the settings, on this rank."""

    def __init__(self, settings: Settings, on_progress: OnProgress) -> None:
        self._settings, self._on_progress = settings, on_progress
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._neighbours = Neighbours.found()
        self._interface = Interface.own(self._neighbours)
        group = TorchGroup.own()
        size, density = settings.size, settings.density
        self._runs = [
            MethodRun(spec, build(spec, size, density, group))
            for spec in settings.specs
        ]
        self._gradients = Gradients(size, self._rank, settings.seed)
        self._fresh, self._grad = torch.empty(size), torch.empty(size)
        self._idle = self._count_idle()

    def verify(self) -> None:
        """Reduce once with every method and verify the results."""
        self._gradients.fill_(self._fresh)
        verifier = Verifier(self._fresh, self._settings.seed)
        truth: Tensor | None = None
        for done, run in enumerate(self._runs):
            self._report(f"verifying {run.spec.label}", done)
            run.method.reduce_(self._grad.copy_(self._fresh))
            verifier.check_identical(self._grad, run.spec.label)
            verifier.check_conserved(self._grad, run.method, run.spec.label)
            if truth is None:  # dense is first
                truth = self._grad.clone()
            run.error = distance(self._grad, truth)
            run.method.reset()

    def warm_up(self) -> None:
        """Let residuals fill, and estimate the time of a step."""
        for step in range(self._warm):
            place = len(self._runs) + step
            self._report(f"warming up {step + 1}", place)
            self._gradients.fill_(self._fresh)
            for run in self._runs:
                if step < run.method.warm:
                    run.estimate = self._step(run).wall
        for run in self._runs:
            run.estimate = slowest(run.estimate)

    def run(self) -> None:
        """Time all methods in turns, in a new order every time."""
        settings = self._settings
        turns = [run.turns(settings) for run in self._runs]
        for repeat in range(settings.repeats):
            place = len(self._runs) + self._warm + repeat
            self._report(f"repetition {repeat + 1}", place)
            self._gradients.fill_(self._fresh)
            order = list(zip(self._runs, turns, strict=True))
            Random(f"{settings.seed} {repeat}").shuffle(order)  # the same on all ranks
            for run, own in order:
                if repeat in own:
                    run.samples.append(self._step(run))

    def result(self) -> Result:
        """The figures of all ranks together."""
        settings = self._settings
        rows = [self._row(run) for run in self._runs]
        self._report("done", self._parts)
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

    def _report(self, what: str, done: int) -> None:
        self._on_progress(ProgressEvent(what, done, self._parts))

    @property
    def _parts(self) -> int:
        return len(self._runs) + self._warm + self._settings.repeats

    @property
    def _warm(self) -> int:
        return max(run.method.warm for run in self._runs)

    def _step(self, run: MethodRun) -> Sample:
        self._grad.copy_(self._fresh)
        dist.barrier()
        before = self._sent()
        start, started = process_time(), perf_counter()
        run.method.reduce_(self._grad)
        wall, cpu = perf_counter() - started, process_time() - start
        dist.barrier()  # else some bytes would not be sent yet
        wire = None if before is None else (self._sent() or 0) - before - self._idle
        cost = run.method.cost()
        return Sample(wall, cpu, wire, cost, run.method.phases(wall))

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

    def _row(self, run: MethodRun) -> Row:
        every: list[list[Sample]] = gathered(run.samples)
        steps = list(zip(*every, strict=True))  # of each repetition, every rank's
        walls = [max(sample.wall for sample in step) for step in steps]
        low, middle, high = quantiles(walls, n=4, method="inclusive")
        samples = [sample for step in steps for sample in step]
        cpu = median(fmean(sample.cpu for sample in step) for step in steps)
        sent = max(sample.cost.nbytes for sample in samples)
        rounds = max(sample.cost.rounds for sample in samples)
        names = samples[0].phases
        return Row(
            label=run.spec.label,
            method=run.spec.method,
            codec=run.spec.codec,
            peer=run.spec.peer,
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
            error=run.error,
            forecast=self._forecast(cpu, Cost(rounds, sent)),
        )

    def _forecast(self, cpu: float, cost: Cost) -> float | None:
        """The time on a link that was named but cannot be built here."""
        settings = self._settings
        if settings.rate is None or settings.place != "loopback":
            return None
        return cpu + Link(bandwidth=settings.rate / 8).seconds(cost)


def _busiest(every: Sequence[Sequence[Sample]]) -> int | None:
    """The median bytes of the rank that sends the most."""
    counts = [[s.wire for s in samples if s.wire is not None] for samples in every]
    return max((round(median(own)) for own in counts if own), default=None)
