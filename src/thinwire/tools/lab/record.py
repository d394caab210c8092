"""The record of a lab: a file that exists until the lab is removed.

It names the process that the lab lives in, and one on each host, by which other
processes get to its network. A record whose process has ended is no lab: it is removed
when it is met.
"""

import json
import os
import re
import secrets
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError, LabError

MOST_HOSTS = 250

_NAME = re.compile(r"[a-z0-9]{1,16}")
_START_FIELD = 19  # of /proc/PID/stat, after the name: when the process started
_RUN = Path("/run")


def _folder() -> Path:
    """Where this user's labs are recorded."""
    if os.access(_RUN, os.W_OK):
        return _RUN / "thinwire"
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    folder = own if os.access(own, os.W_OK) else tempfile.gettempdir()
    return Path(folder) / f"thinwire-{user}"


FOLDER = _folder()


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a lab ends with: pid and start time, since pids are reused."""

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> "Owner":
        """The process that has this number now."""
        return cls(pid, _start(pid))

    @classmethod
    def me(cls) -> "Owner":
        return cls.of(os.getpid())

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return self.start != "" and _start(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Record:
    """A lab's name, a rate in bits per second for each host, and where it lives."""

    name: str
    rates: tuple[int, ...]
    owner: Owner  # its process; who builds it, until there is one
    delay: float = 0.0  # seconds, each way
    loss: float = 0.0  # of the packets, each way
    pids: tuple[int, ...] = ()  # of a process on each host

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"the lab's name is {self.name!r}: give 1 to 16 small letters or digits"
            )
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise ConfigError(f"{self.hosts} hosts: give 1 to {MOST_HOSTS}")

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.rates)

    @property
    def switch(self) -> int:
        """The number of a process on the switch: the one that the lab lives in."""
        return self.owner.pid

    @property
    def file(self) -> Path:
        """The file of the record."""
        return FOLDER / f"{self.name}.json"

    @property
    def names(self) -> Path:
        """The hosts' own /etc/hosts."""
        return FOLDER / f"{self.name}.hosts"

    def address(self, host: int) -> str:
        """Its address; every lab uses the same ones, none can reach another."""
        return f"10.0.0.{host + 1}"

    def create(self) -> None:
        """Write the file, which must not exist."""
        try:
            FOLDER.mkdir(mode=0o700, exist_ok=True)
            find_all()  # one of this name may be gone
            fresh = self._write()
            try:
                # All of it at once: another lab that is built now reads the file.
                self.file.hardlink_to(fresh)
            finally:
                fresh.unlink()
        except FileExistsError as error:
            raise LabError(
                f"there is a lab {self.name!r} already: choose another name, or "
                f"thinwire lab down --lab {self.name}"
            ) from error
        except PermissionError as error:
            raise LabError(
                f"cannot write {self.file}: set XDG_RUNTIME_DIR to a folder of yours"
            ) from error

    def replace(self) -> None:
        """Write the file anew; a reader finds the old one or the new one."""
        self._write().replace(self.file)

    def _write(self) -> Path:
        """A file that is nobody else's, with the record in it."""
        number, name = tempfile.mkstemp(dir=FOLDER, prefix=f"{self.name}.")
        with os.fdopen(number, "w") as file:
            json.dump(asdict(self), file)
        return Path(name)

    def forget(self) -> None:
        """Remove the files."""
        self.names.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)


def new_name() -> str:
    """A random name for a new lab."""
    return secrets.token_hex(3)


def find_all() -> list[Record]:
    """The records of all labs of this user; those of labs that are gone are removed."""
    _check_owner()
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        with suppress(FileNotFoundError):  # taken down meanwhile
            each = _read(file)
            if each.owner.lives:
                found.append(each)
            else:
                each.forget()
    return found


def _read(file: Path) -> Record:
    text = file.read_text()
    try:
        data: dict[str, Any] = json.loads(text)
        data["owner"] = Owner(**data["owner"])
        return Record(
            **{**data, "rates": tuple(data["rates"]), "pids": tuple(data["pids"])}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{file} is no record of a lab of this version: remove it"
        ) from error


def _check_owner() -> None:
    """In a folder for all users, somebody else may have made this one.

    What he writes there would be entered as this user's lab, and killed.
    """
    with suppress(FileNotFoundError):
        if FOLDER.lstat().st_uid != os.geteuid():
            raise LabError(
                f"{FOLDER} is somebody else's: set XDG_RUNTIME_DIR to a folder of yours"
            )


def _start(pid: int) -> str:
    """When a process started, in the kernel's count; nothing if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[_START_FIELD]
