"""Processes on every host: started and ended together, their output read."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.network import INTERFACE
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import rate_name

Tell = Callable[[int, str], None]  # a rank, and a line it printed

# The variable with the rates of all hosts' links, in order.
RATES_VARIABLE = "THINWIRE_LAB_RATES"
# The variable with how late every message is, one way: "0.02s".
DELAY_VARIABLE = "THINWIRE_LAB_DELAY"

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 3.0
# To read what a process has printed; longer if what it started holds the pipe open.
_LAST_LINES_SECONDS = 10.0
# Below the ports that the kernel gives out, and another one for every run: two runs may
# go on at once, and a port is not free at once after a process that was killed.
_PORTS = range(20_000, 30_000)
_MOST_PER_HOST = 64


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run: on every host of a lab as many as on the others."""

    record: Record
    per_host: int = 1

    def __post_init__(self) -> None:
        if not self.record.pids:
            raise LabError("the lab is not up")
        if not 1 <= self.per_host <= _MOST_PER_HOST:
            raise ConfigError(
                f"{self.per_host} ranks per host: give 1 to {_MOST_PER_HOST}"
            )

    @property
    def count(self) -> int:
        """The number of all ranks."""
        return self.record.hosts * self.per_host

    def host(self, rank: int) -> int:
        """The host of a rank: those of a host follow one another."""
        return rank // self.per_host


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of every rank; negative: the signal that ended it."""

    codes: tuple[int, ...]
    failed: int | None  # the first rank to fail; the others were then ended

    @property
    def code(self) -> int:
        """The exit code of the run: 0, or that of the first rank to fail."""
        code = self.codes[self.failed] if self.failed is not None else 0
        return code if code >= 0 else 128 - code


def print_line(rank: int, line: str) -> None:
    """Write a line after the number of its rank."""
    sys.stdout.write(f"[{rank}] {line}\n")
    sys.stdout.flush()


def environment(ranks: Ranks, rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets, with as many processes on each host."""
    given, host = os.environ, ranks.host(rank)
    return {
        **given,
        "MASTER_ADDR": ranks.record.address(0),
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks.count),
        "LOCAL_RANK": str(rank % ranks.per_host),
        "LOCAL_WORLD_SIZE": str(ranks.per_host),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(ranks.record.hosts),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        RATES_VARIABLE: ",".join(map(rate_name, ranks.record.rates)),
        DELAY_VARIABLE: f"{ranks.record.delay:g}s",
        # As torchrun does: the hosts share this machine's processors.
        "OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": given.get("PYTHONUNBUFFERED", "1"),
    }


def run(
    ranks: Ranks,
    command: Sequence[str],
    *,
    tell: Tell = print_line,
    timeout: float | None = None,
) -> Outcome:
    """Run a command on every host of a lab until all are done or one fails.

    All its processes end with the call, also after Ctrl-C or if this process is killed.
    """
    if not command:
        raise LabError("no command: say what to run, such as: python script.py")
    processes = _Processes(ranks, tell)
    try:
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        for rank in range(ranks.count):
            processes.start(rank, command, port)
        failed = processes.wait(timeout)
    finally:
        processes.end()
    return Outcome(processes.codes, failed)


@dataclass
class _Processes:
    """The processes of a run, in order of rank, and threads that read their output."""

    ranks: Ranks
    tell: Tell
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    listeners: list[threading.Thread] = field(default_factory=list)
    speaking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def codes(self) -> tuple[int, ...]:
        return tuple(process.returncode for process in self.processes)

    def start(self, rank: int, command: Sequence[str], port: int) -> None:
        pid = self.ranks.record.pids[self.ranks.host(rank)]
        process = subprocess.Popen(
            [*commands.inside(pid, "all"), *command],
            env=environment(self.ranks, rank, port),
            # Its end, of whatever cause, ends the command and what that has started.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A group of its own, so that what it starts can be ended with it.
            start_new_session=True,
        )
        listener = threading.Thread(target=self._listen, args=(rank, process))
        listener.start()
        self.processes.append(process)
        self.listeners.append(listener)

    def wait(self, timeout: float | None) -> int | None:
        """The rank that failed first, or None when all are done."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed or None not in codes:
                return failed[0] if failed else None
            if end is not None and time.monotonic() > end:
                silent = [rank for rank, code in enumerate(codes) if code is None]
                raise LabError(f"ranks {silent} are not done after {timeout} s")
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Terminate the processes that still run, then kill them."""
        for process in self.processes:
            if process.poll() is None:
                _signal(process, signal.SIGTERM)
        end = time.monotonic() + _GRACE_SECONDS
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            # Also where it has ended: what it started may hold its pipe open.
            _signal(process, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        end = time.monotonic() + _LAST_LINES_SECONDS
        for listener in self.listeners:
            listener.join(max(0.0, end - time.monotonic()))

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        # Once nobody hears the lines, as in a pipe to head, the process's own pipe is
        # closed: it ends when it writes.
        with process.stdout, suppress(BrokenPipeError):
            for line in process.stdout:
                with self.speaking:
                    self.tell(rank, line.rstrip("\n"))


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
