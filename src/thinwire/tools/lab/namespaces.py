"""A lab's namespaces: made without root where the system lets users make their own."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LabError
from thinwire.tools.lab import commands, holder

_KINDS = ["--mount", "--net", "--pid", "--fork", "--kill-child"]
_OWN_USERS = ["--user", "--map-root-user"]
_NEEDED = (1 << 12) | (1 << 21)  # CAP_NET_ADMIN, CAP_SYS_ADMIN
_SECONDS = 30.0


def privileged() -> bool:
    """Whether this process may make namespaces as it is, without a user namespace."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, given = line.partition(":")
            if name == "CapEff":
                return int(given, 16) & _NEEDED == _NEEDED
    return False


@dataclass
class Holder:
    """The process that a lab lives in, as its parent knows it."""

    process: subprocess.Popen[str]
    switch: int  # the number of the process, and of one process on each host
    hosts: tuple[int, ...]

    @classmethod
    def start(cls, hosts: int, names: Path, record: Path) -> "Holder":
        """Make namespaces for a switch and for hosts."""
        unshare = [commands.find("unshare") or "unshare", *_KINDS]
        unshare += [] if privileged() else _OWN_USERS
        script = [
            *commands.SCRIPT,
            holder.__file__,
            str(hosts),
            str(names),
            str(record),
        ]
        process = _open([*unshare, *script])
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            _, complaint = process.communicate(timeout=_SECONDS)
            why = "; ".join(complaint.split("\n")).strip("; ") or "no reason given"
            raise LabError(
                f"no namespaces for a lab: {why}. What this machine lacks: "
                "thinwire lab doctor"
            )
        found = json.loads(said)
        return cls(process, found["switch"], tuple(found["hosts"]))

    def stay(self) -> None:
        """Let the lab outlive this process."""
        assert self.process.stdin is not None
        self.process.stdin.write(holder.STAY + "\n")
        self._close()
        # Its parent, unshare, ends with it: nobody here waits for that.
        self.process.returncode = 0

    def end(self) -> None:
        """End it, and with it whatever runs on the hosts."""
        self._close()
        self.process.wait()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def _open(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        # A session of its own: Ctrl-C is for the process that it belongs to.
        return subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise LabError("there is no unshare: install util-linux") from error
