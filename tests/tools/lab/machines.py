"""What tests of labs need of a machine, and scripts that they run on hosts."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from thinwire.tools.lab.lab import Lab
from thinwire.tools.lab.record import Record

# For what takes far less, but not on a machine that is busy with much else.
SECONDS = 50.0

PYTHON = [sys.executable, "-I", "-S", "-c"]


def links() -> set[str]:
    """The machine's own interfaces."""
    shown = subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, check=True
    )
    return {line.split(": ")[1] for line in shown.stdout.splitlines()}


def networks(lab: Record) -> set[str]:
    """The network namespaces of a lab: of its hosts and of its switch."""
    return {network(pid) for pid in (*lab.pids, lab.switch)}


def network(pid: int | str) -> str:
    """The network namespace of a process; nothing if there is no such process."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def users(found: set[str]) -> list[int]:
    """The processes in network namespaces: without any, a namespace is gone."""
    pids = (path.name for path in Path("/proc").glob("[0-9]*"))
    return [int(pid) for pid in pids if network(pid) in found]


def running(lab: Record) -> list[int]:
    """The processes on a lab's hosts, but for those that hold the namespaces."""
    hosts = {network(pid) for pid in lab.pids}
    return [pid for pid in users(hosts) if pid not in lab.pids]


def said(lab: Lab, *command: str) -> list[tuple[int, str]]:
    """The lines of a command that must succeed, in order of host."""
    lines: list[tuple[int, str]] = []
    outcome = lab.run(command, tell=lambda *line: lines.append(line), timeout=SECONDS)
    assert outcome.code == 0, lines
    return sorted(lines, key=lambda line: line[0])


def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether something comes to hold."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
