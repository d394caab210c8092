"""One process on every host: started and ended together, their output read."""

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

from thinwire.errors import LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.cleanup import CleanupProcess
from thinwire.tools.lab.network import INTERFACE
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import rate_name

Tell = Callable[[int, str], None]  # a host, and a line it printed

# Names for the hosts' addresses: torch looks them up, and complains if there are none.
# `ip netns exec` has left the machine's mounts behind: other processes do not see them.
_WITH_NAMES = 'mount --bind "$0" /etc/hosts 2>/dev/null; exec "$@"'

# The variable with the rates of all hosts' links, in order.
RATES_VARIABLE = "THINWIRE_LAB_RATES"

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 3.0
# Below the ports that the kernel gives out, and another one for every run: two runs may
# go on at once, and a port is not free at once after a process that was killed.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of every host's process; negative: the signal that ended it."""

    codes: tuple[int, ...]
    failed: int | None  # the first host to fail; the others were then ended

    @property
    def code(self) -> int:
        """The exit code of the run: 0, or that of the first host to fail."""
        code = self.codes[self.failed] if self.failed is not None else 0
        return code if code >= 0 else 128 - code


def print_line(host: int, line: str) -> None:
    """Write a line after the number of its host."""
    sys.stdout.write(f"[{host}] {line}\n")
    sys.stdout.flush()


def environment(record: Record, host: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets, for one process on each host."""
    given = os.environ
    return {
        **given,
        "MASTER_ADDR": record.address(0),
        "MASTER_PORT": str(port),
        "RANK": str(host),
        "WORLD_SIZE": str(record.hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        RATES_VARIABLE: ",".join(map(rate_name, record.rates)),
        # As torchrun does: the hosts share this machine's processors.
        "OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": given.get("PYTHONUNBUFFERED", "1"),
    }


def run(
    record: Record,
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
    processes, cleanup = _Processes(record, tell), CleanupProcess()
    try:
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        for host in range(record.hosts):
            processes.start(host, command, port, cleanup)
        failed = processes.wait(timeout)
    finally:
        processes.end()
        cleanup.dismiss()  # not where a second Ctrl-C came first: it ends the rest
    return Outcome(processes.codes, failed)


@dataclass
class _Processes:
    """The processes of a run, in order of host, and threads that read their output."""

    record: Record
    tell: Tell
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    listeners: list[threading.Thread] = field(default_factory=list)
    speaking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def codes(self) -> tuple[int, ...]:
        return tuple(process.returncode for process in self.processes)

    def start(
        self, host: int, command: Sequence[str], port: int, cleanup: CleanupProcess
    ) -> None:
        namespace, names = self.record.namespace(host), str(self.record.names)
        enter = [commands.find("ip") or "ip", "netns", "exec", namespace]
        process = subprocess.Popen(
            [*enter, "sh", "-c", _WITH_NAMES, names, *command],
            env=environment(self.record, host, port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A group of its own, so that what it starts can be ended with it.
            start_new_session=True,
        )
        cleanup.end_group(process.pid)
        listener = threading.Thread(target=self._listen, args=(host, process))
        listener.start()
        self.processes.append(process)
        self.listeners.append(listener)

    def wait(self, timeout: float | None) -> int | None:
        """The host that failed first, or None when all are done."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [host for host, code in enumerate(codes) if code]
            if failed or None not in codes:
                return failed[0] if failed else None
            if end is not None and time.monotonic() > end:
                silent = [host for host, code in enumerate(codes) if code is None]
                raise LabError(f"hosts {silent} are not done after {timeout} s")
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
        for listener in self.listeners:
            listener.join(_GRACE_SECONDS)

    def _listen(self, host: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self.speaking:
                    self.tell(host, line.rstrip("\n"))


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
