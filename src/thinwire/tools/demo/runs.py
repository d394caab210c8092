"""The demo: the same small training run once per method, on local processes.

Processes are started by torch's own elastic launcher, on the loopback interface, once
for all methods. The first method decides the number of steps: the others make as many
as it made in its share of the time, or as many as fit in theirs.
"""

import logging
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pickle import UnpicklingError
from statistics import fmean

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
)
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from thinwire import catalog
from thinwire.collectives import Dense
from thinwire.errors import ConfigError, GroupError
from thinwire.tools.demo.loop import Limits, ProgressEvent, Recipe, Run, train
from thinwire.tools.demo.text import Corpus, standard_library

LOSS_WINDOW = 10  # steps that a training loss in the table is averaged over

# The first method takes less than its share, so that slower methods fit in theirs.
_FIRST_SHARE = 0.8
_SECONDS_TO_START = 60

Events = Connection


@dataclass(frozen=True, slots=True)
class Settings:
    """What to compare; `seconds` is the time for everything, starting up included."""

    methods: tuple[str, ...]
    workers: int = 4
    seconds: float = 120.0
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if not self.methods:
            raise ConfigError("no method to show: name some, or 'all'")
        if self.workers < 1:
            raise ConfigError(f"{self.workers} workers: start 1 or more")
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"{self.seconds} seconds: give a time above 0")
        for name in self.methods:
            reducer = catalog.reducer(name, density=self.recipe.density)
            reducer.collective.check(self.workers)


@dataclass(frozen=True, slots=True)
class Row:
    """One method, over all ranks: losses are means, bytes the busiest rank's."""

    method: str
    steps: int
    losses: tuple[float, ...]
    held_out_start: float
    held_out_end: float
    bytes_sent: float  # a step and worker
    seconds: float  # a step
    in_time: bool  # False: it ran out of time before it made all steps

    def loss_at(self, step: int) -> float:
        """The training loss, averaged over the last few steps up to this one."""
        return fmean(self.losses[max(0, step - LOSS_WINDOW) : step])


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo found. After every run all replicas were bit-identical."""

    settings: Settings
    parameters: int
    rows: tuple[Row, ...]

    @property
    def common_steps(self) -> int:
        """The number of steps that every method made: where losses are compared."""
        return min(row.steps for row in self.rows)

    @property
    def dense_bytes(self) -> int:
        """What dense sends in a step, by its card."""
        return Dense().cost(self.parameters, self.settings.workers, None).nbytes


def run(settings: Settings, on_progress: Callable[[ProgressEvent], None]) -> Result:
    """Train with every method and compare; a thread calls `on_progress`.

    Must be called from the main thread, since the launcher handles signals.
    """
    deadline = time.monotonic() + settings.seconds
    standard_library()  # refuses here, rather than in every process
    with _listening(on_progress) as events, tempfile.TemporaryDirectory() as logs:
        launch = elastic_launch(_launch_config(settings.workers, logs), _work)
        by_rank = _call(launch, settings, deadline, events)
    runs = [by_rank[rank] for rank in sorted(by_rank)]
    rows = tuple(_row(same, runs[0][0]) for same in zip(*runs, strict=True))
    return Result(settings, runs[0][0].parameters, rows)


def _call(
    launch: elastic_launch, settings: Settings, deadline: float, events: Events
) -> dict[int, list[Run]]:
    try:
        by_rank: dict[int, list[Run]] = launch(settings, deadline, events)
    except SignalException as stop:
        # The launcher has ended all processes by now.
        raise KeyboardInterrupt from stop
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        raise GroupError(f"worker {rank} failed: {_words(failure)}") from failed
    return by_rank


def _words(failure: ProcessFailure) -> str:
    """The message of a worker's error, which may be a dictionary."""
    said: object = failure.message
    return str(said.get("message", said)) if isinstance(said, dict) else str(said)


def _launch_config(workers: int, logs: str) -> LaunchConfig:
    for launcher in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(launcher).setLevel(logging.CRITICAL)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=f"thinwire-{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # any free port: two demos do not meet
        rdzv_configs={"timeout": _SECONDS_TO_START},
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL),
    )


@contextmanager
def _listening(on_progress: Callable[[ProgressEvent], None]) -> Iterator[Events]:
    """A pipe whose events are passed on by a thread, while this one launches.

    Not a queue: a worker that is killed while it writes would keep its lock for ever.
    """
    ours, theirs = get_context("spawn").Pipe(duplex=False)

    def listen() -> None:
        with suppress(EOFError, OSError, UnpicklingError):
            while True:
                on_progress(ours.recv())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield theirs
    finally:
        theirs.close()  # the last one open: the listener comes to the end
        listener.join()


def _work(settings: Settings, deadline: float, events: Events) -> list[Run]:
    """Train with every method in turn, in one process."""
    # On Ctrl-C the launcher prints the message; a worker only ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # It would turn every method into dense.
    os.environ.pop("THINWIRE", None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.workers))
    dist.init_process_group("gloo")
    on_progress = events.send if dist.get_rank() == 0 else _ignore
    corpus = Corpus.of(standard_library())
    runs: list[Run] = []
    for method in settings.methods:
        limits = _share(settings, deadline, runs)
        run = train(
            method, settings.recipe, corpus, limits=limits, on_progress=on_progress
        )
        runs.append(run)
    dist.destroy_process_group()
    return runs


def _share(settings: Settings, deadline: float, runs: Sequence[Run]) -> Limits:
    """The next method's part of the time that is left."""
    left = max(deadline - time.monotonic(), 0.0)
    share = left / (len(settings.methods) - len(runs))
    if not runs:
        return Limits(_FIRST_SHARE * share if len(settings.methods) > 1 else share)
    return Limits(share, most=len(runs[0].losses))


def _row(runs: Sequence[Run], first_run: Run) -> Row:
    first = runs[0]
    return Row(
        first.method,
        len(first.losses),
        tuple(fmean(losses) for losses in zip(*(r.losses for r in runs), strict=True)),
        fmean(r.held_out[0] for r in runs),
        fmean(r.held_out[1] for r in runs),
        max(r.bytes_sent for r in runs),
        fmean(r.seconds for r in runs),
        in_time=len(first.losses) == len(first_run.losses),
    )


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def _ignore(event: ProgressEvent) -> None:
    """Do nothing: for ranks other than 0."""
