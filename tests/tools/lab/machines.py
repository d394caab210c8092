"""What tests of labs need of a machine, and scripts that they run on hosts."""

import subprocess
import sys
import time
from collections.abc import Callable

from thinwire.tools.lab import network
from thinwire.tools.lab.lab import Lab

PYTHON = [sys.executable, "-I", "-S", "-c"]


def links() -> set[str]:
    """The machine's own interfaces."""
    shown = subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, check=True
    )
    return {line.split(": ")[1] for line in shown.stdout.splitlines()}


def namespaces(name: str) -> set[str]:
    """What there is of a lab."""
    return {each for each in network.existing() if each.startswith(f"thinwire-{name}-")}


def said(lab: Lab, *command: str) -> list[tuple[int, str]]:
    """The lines of a command that must succeed, in order of host."""
    lines: list[tuple[int, str]] = []
    outcome = lab.run(command, tell=lambda *line: lines.append(line), timeout=20)
    assert outcome.code == 0, lines
    return sorted(lines, key=lambda line: line[0])


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something comes to hold."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
