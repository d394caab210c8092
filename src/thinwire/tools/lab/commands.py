"""Run `ip` and `tc`, with errors that say what failed and how to find out why."""

import os
import shutil
import subprocess
from collections.abc import Iterable

from thinwire.errors import LabError

_SECONDS = 30.0


def find(tool: str) -> str | None:
    """Where a tool is; the system's folders may be missing from PATH."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return shutil.which(tool, path=os.pathsep.join(folders))


def run(tool: str, *arguments: str, script: str | None = None) -> str:
    """What a command prints; `script` is its standard input."""
    path = find(tool)
    if path is None:
        raise LabError(f"there is no {tool}: install iproute2")
    try:
        done = subprocess.run(
            [path, *arguments],
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


def batch(tool: str, namespace: str, lines: Iterable[str]) -> None:
    """Many commands in one namespace, in one process."""
    run(tool, "-n", namespace, "-batch", "-", script="\n".join(lines) + "\n")


def _failure(command: list[str], script: str | None, complaint: str) -> str:
    said = "; ".join(complaint.split("\n")).strip("; ") or "no reason given"
    text = f"{' '.join(command)} failed: {said}"
    if script:
        text += f" (of: {'; '.join(script.splitlines())})"
    return f"{text}. What this machine lacks: thinwire lab doctor"
