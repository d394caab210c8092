"""Run `ip` and `tc`, with errors that say what failed and how to find out why."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from thinwire.errors import LabError
from thinwire.tools.lab import enter

_SECONDS = 120.0  # a busy machine takes seconds to start Python

# Nothing of the user's Python is read: not the packages of site, not the folder.
SCRIPT = [sys.executable, "-I", "-S"]


def find(tool: str) -> str | None:
    """Where a tool is; the system's folders may be missing from PATH."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return shutil.which(tool, path=os.pathsep.join(folders))


def inside(pid: int, kinds: str = "net") -> list[str]:
    """What to put before a command, to run it in namespaces of a process."""
    return [*SCRIPT, enter.__file__, str(pid), kinds]


def run(tool: str, *arguments: str, pid: int, script: str | None = None) -> str:
    """What a command prints on the network of a process; `script` is its input."""
    path = find(tool)
    if path is None:
        raise LabError(f"there is no {tool}: install iproute2")
    try:
        done = subprocess.run(
            [*inside(pid), path, *arguments],
            input=script or "",
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        what = " ".join([tool, *arguments])
        raise LabError(f"{what}: no end after {_SECONDS:.0f} s") from error
    if done.returncode:
        raise LabError(_failure([tool, *arguments], script, done.stderr))
    return done.stdout


def batch(tool: str, pid: int, lines: Iterable[str]) -> None:
    """Many commands on the network of a process, in one process."""
    run(tool, "-batch", "-", pid=pid, script="\n".join(lines) + "\n")


def _failure(command: list[str], script: str | None, complaint: str) -> str:
    said = "; ".join(complaint.split("\n")).strip("; ") or "no reason given"
    text = f"{' '.join(command)} failed: {said}"
    if script:
        text += f" (of: {'; '.join(script.splitlines())})"
    return f"{text}. What this machine lacks: thinwire lab doctor"
