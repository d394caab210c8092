"""A process that cleans up after another one that is killed.

It reads what to clean up from a pipe, which the kernel closes when the other process
ends for any reason. This file is run as a script and imports nothing of thinwire, so
that it starts fast.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_DISMISSED = "dismissed"
_SECONDS = 30.0
_PATIENCE_SECONDS = 0.1  # a command of the dead process may still be at work


class CleanupProcess:
    """Removes processes, namespaces and files when this process ends or is killed."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C is for the process that is watched.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def end_group(self, pid: int) -> None:
        """Kill a process group."""
        self._send(f"group {pid}")

    def remove_namespace(self, name: str) -> None:
        """Remove a network namespace and what runs in it."""
        self._send(f"namespace {name}")

    def remove_file(self, path: Path) -> None:
        """Remove a file, after what was named before it."""
        self._send(f"file {path}")

    def dismiss(self) -> None:
        """End without cleaning up: everything was removed."""
        with suppress(BrokenPipeError):
            self._process.communicate(_DISMISSED + "\n", _SECONDS)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def _clean_up(kind: str, what: str) -> None:
    if kind == "group":
        with suppress(ProcessLookupError):
            os.killpg(int(what), signal.SIGKILL)
    elif kind == "file":
        Path(what).unlink(missing_ok=True)
    elif kind == "namespace":
        for pid in _ip("pids", what).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("delete", what)


def _ip(*arguments: str) -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    ip = shutil.which("ip", path=path) or "ip"
    command = [ip, "netns", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.read().splitlines()
    if _DISMISSED not in lines:
        time.sleep(_PATIENCE_SECONDS)
        for line in lines:
            _clean_up(*line.split(" ", 1))


if __name__ == "__main__":
    _main()
