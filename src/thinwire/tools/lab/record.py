"""The record of a lab: a file that exists until the lab is removed.

The file is written before the first namespace is made and removed after the last one,
so that whatever a killed process leaves behind can be found. It lies beside the
namespaces themselves, under /run, which only root can write.
"""

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError, LabError

FOLDER = Path("/run/thinwire")
PREFIX = "thinwire"
MOST_HOSTS = 250

_NAME = re.compile(r"[a-z0-9]{1,16}")
_START_FIELD = 19  # of /proc/PID/stat, after the name: when the process started


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
    """A lab's name, a rate in bits per second for each host, and its owner."""

    name: str
    rates: tuple[int, ...]
    owner: Owner | None = None  # None: it stays until it is taken down

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
    def abandoned(self) -> bool:
        """Whether its owner ended without taking it down."""
        return self.owner is not None and not self.owner.lives

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{PREFIX}-{self.name}-switch"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them, the switch last."""
        return *(self.namespace(host) for host in range(self.hosts)), self.switch

    @property
    def file(self) -> Path:
        """The file of the record."""
        return FOLDER / f"{self.name}.json"

    @property
    def names(self) -> Path:
        """The hosts' own /etc/hosts."""
        return FOLDER / f"{self.name}.hosts"

    def namespace(self, host: int) -> str:
        """The namespace of a host."""
        return f"{PREFIX}-{self.name}-{host}"

    def address(self, host: int) -> str:
        """Its address; every lab uses the same ones, none can reach another."""
        return f"10.0.0.{host + 1}"

    def create(self) -> None:
        """Write the file, which must not exist."""
        try:
            FOLDER.mkdir(exist_ok=True)
            with self.file.open("x") as file:
                json.dump(asdict(self), file)
        except FileExistsError as error:
            raise LabError(
                f"there is a lab {self.name!r} already: choose another name, or "
                f"thinwire lab down --lab {self.name}"
            ) from error
        except PermissionError as error:
            raise LabError(f"cannot write {self.file}: a lab needs root") from error

    def replace(self) -> None:
        """Write the file anew; a reader finds the old one or the new one."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(self.file)

    def forget(self) -> None:
        """Remove the files."""
        self.names.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)


def new_name() -> str:
    """A random name for a new lab."""
    return secrets.token_hex(3)


def find_all() -> list[Record]:
    """The records of all labs."""
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        with suppress(FileNotFoundError):  # taken down meanwhile
            found.append(_read(file))
    return found


def _read(file: Path) -> Record:
    text = file.read_text()
    try:
        data: dict[str, Any] = json.loads(text)
        owner = Owner(**data["owner"]) if data["owner"] else None
        return Record(data["name"], tuple(data["rates"]), owner)
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{file} is no record of a lab: remove it, and the namespaces that "
            f"`ip netns list` shows as {PREFIX}-{file.stem}-*"
        ) from error


def _start(pid: int) -> str:
    """When a process started, in the kernel's count; nothing if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[_START_FIELD]
