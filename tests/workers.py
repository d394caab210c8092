"""Real processes for tests: pools that live as long as pytest, and throw-away ones.

`pool(4).run(function, *args)` calls `function(group, *args)` in each of four processes
and gives their results in order of rank; `function` must be importable by name. A pool
in which anything failed or hung is killed, and the next `pool(4)` starts a new one.
"""

import atexit
import contextlib
import faulthandler
import gc
import multiprocessing
import multiprocessing.context
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.groups.torch import TorchGroup

GROUP_SECONDS = 20.0  # a call of the group
RUN_SECONDS = 50.0  # a whole function: less than pytest's limit for a test
_AFTER_FAILURE_SECONDS = 5.0
# A group of Gloo's wakes up a hundred times a second, and lives as long as its process.
_MOST_THREADS = 40


@dataclass(frozen=True)
class Outcome:
    """What became of one rank."""

    result: Any = None
    error: BaseException | None = None
    exitcode: int | None = None


class Pool:
    """Processes of one process group that wait for functions to run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._store = _host_store()
        self._ranks = [_Rank(rank, size, self._store.port) for rank in range(size)]
        self._generation = 0

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float = RUN_SECONDS
    ) -> list[Any]:
        job = pickle.dumps((function, args))
        self._generation += self._crowded
        for rank in self._ranks:
            rank.send(job, self._generation)
        outcomes = _collect(dict(enumerate(self._ranks)), timeout)
        failed = [rank for rank in outcomes if outcomes[rank].error is not None]
        if failed or len(outcomes) < self.size:
            for rank in set(range(self.size)) - set(outcomes):
                self._ranks[rank].show_threads()
            self.close()
        for rank in failed:
            raise outcomes[rank].error  # type: ignore[misc]
        if len(outcomes) < self.size:
            silent = sorted(set(range(self.size)) - set(outcomes))
            raise TimeoutError(f"no answer from ranks {silent} in {timeout} s")
        return [outcomes[rank].result for rank in range(self.size)]

    @property
    def _crowded(self) -> bool:
        """Whether many process groups live on in a process: each has busy threads."""
        threads = Path(f"/proc/{self._ranks[0].process.pid}/task")
        return threads.exists() and len(list(threads.iterdir())) > _MOST_THREADS

    def close(self) -> None:
        _POOLS.pop(self.size, None)
        for rank in self._ranks:
            rank.close()


_POOLS: dict[int, Pool] = {}


def pool(size: int) -> Pool:
    """The session's pool of `size` processes, started when first asked for."""
    if size not in _POOLS:
        _register_shutdown()
        _POOLS[size] = Pool(size)
    return _POOLS[size]


def shutdown() -> None:
    """End all pools."""
    for each in list(_POOLS.values()):
        each.close()


@cache
def _register_shutdown() -> None:
    atexit.register(shutdown)


def fresh(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    lost: Iterable[int] = (),
    timeout: float = RUN_SECONDS,
    group_timeout: float = GROUP_SECONDS,
    host: int | None = None,
) -> list[Outcome]:
    """Run `function(group, *args)` in processes of its own; every rank's outcome.

    Ranks in `lost` are not waited for. Rank `host` keeps the store; None: the parent.
    """
    store = _host_store() if host is None else None
    port = store.port if store is not None else free_port()
    ranks = [_Rank(r, size, port, group_timeout, host) for r in range(size)]
    try:
        for rank in ranks:
            rank.send(pickle.dumps((function, args)))
        waited = {r: ranks[r] for r in range(size) if r not in set(lost)}
        outcomes = _collect(waited, timeout, patience=timeout)
        for rank in waited.values():
            rank.dismiss()
    finally:
        for rank in ranks:
            rank.close()
    found = [outcomes.get(r, Outcome()) for r in range(size)]
    return [
        Outcome(one.result, one.error, rank.process.exitcode)
        for one, rank in zip(found, ranks, strict=True)
    ]


class _Rank:
    """The parent's end of one process."""

    def __init__(
        self,
        rank: int,
        size: int,
        port: int,
        group_timeout: float = GROUP_SECONDS,
        host: int | None = None,
    ) -> None:
        forked = context()
        self.connection, theirs = forked.Pipe()
        self.process = forked.Process(
            target=_live,
            args=(theirs, rank, size, port, group_timeout, host),
            daemon=True,
            name=f"rank {rank} of {size}",
        )
        self.process.start()
        theirs.close()  # so that the end of the process ends the connection

    def send(self, job: bytes, generation: int = 0) -> None:
        # Test directories that pytest has added since the process started.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps((sys.path, job, generation)))

    def receive(self) -> Outcome:
        try:
            outcome: Outcome = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join(_AFTER_FAILURE_SECONDS)
            error = RuntimeError(f"{self.process.name} ended: {self.process.exitcode}")
            return Outcome(error=error)
        return outcome

    def show_threads(self) -> None:
        """Let a process that hangs say where, on standard error."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.5)

    def dismiss(self) -> None:
        """Let the process come to its own end."""
        self.connection.close()
        self.process.join(_AFTER_FAILURE_SECONDS)

    def close(self) -> None:
        self.connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


# The kernels of most reductions.
HOT = ("accumulate", "dense", "lists", "packet")
# What processes are forked with; a test that needs more adds it before the first one.
PRELOADED = ["torch._dynamo", "thinwire.hooks.attach"] + [
    f"thinwire.kernels.cpu.{family}" for family in HOT
]


@cache
def context() -> multiprocessing.context.ForkServerContext:
    """Processes forked from one that has imported torch and done nothing else.

    Spawned ones would each import it again: seconds, on every core there is.
    """
    found = multiprocessing.get_context("forkserver")
    # What every rank would otherwise load by itself, DDP's torch._dynamo above all:
    # that takes a busy machine the better part of a minute.
    found.set_forkserver_preload(PRELOADED)
    return found


def _collect(
    ranks: dict[int, _Rank], timeout: float, patience: float = _AFTER_FAILURE_SECONDS
) -> dict[int, Outcome]:
    """Outcomes by rank, without those too late, or too long after a failure."""
    outcomes: dict[int, Outcome] = {}
    deadline = time.monotonic() + timeout
    while len(outcomes) < len(ranks) and time.monotonic() < deadline:
        open_ = {ranks[r].connection: r for r in ranks if r not in outcomes}
        for connection in wait(list(open_), max(deadline - time.monotonic(), 0)):
            rank = open_[connection]  # type: ignore[index]
            outcomes[rank] = ranks[rank].receive()
            if outcomes[rank].error is not None:
                deadline = min(deadline, time.monotonic() + patience)
    return outcomes


def _live(
    connection: Connection,
    rank: int,
    size: int,
    port: int,
    group_timeout: float,
    host: int | None,
) -> None:
    """A process: join the others, then run what is sent until nothing more is."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", port, size, rank == host, timedelta(seconds=40))
    generation = -1
    while True:
        try:
            paths, job, wanted = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        sys.path += [path for path in paths if path not in sys.path]
        if wanted != generation:
            group = None  # while it is held, its threads do not end
            group = _join(store, rank, size, wanted, group_timeout)
            generation = wanted
        connection.send_bytes(_run(group, job))
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(
    store: dist.Store, rank: int, size: int, generation: int, group_timeout: float
) -> TorchGroup:
    """The group of this generation; those before it end, with all of their threads."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
    # New names: the store still has the addresses of groups that ended.
    names = dist.PrefixStore(f"generation {generation}", store)
    dist.init_process_group("gloo", store=names, rank=rank, world_size=size)
    return TorchGroup(timeout=group_timeout)


def _run(group: TorchGroup, job: bytes) -> bytes:
    where = f"on rank {group.rank} of {group.size}"
    try:
        function, args = pickle.loads(job)
        return pickle.dumps(Outcome(function(group, *args)))
    except BaseException as error:
        text = f"raised {where}:\n{traceback.format_exc()}"
        return pickle.dumps(Outcome(error=portable(error, text)))


def portable(error: BaseException, text: str) -> BaseException:
    """The error itself if it survives pickling, else one that says the same."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(text)
    return copy


def _host_store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
