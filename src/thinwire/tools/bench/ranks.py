"""Real processes that measure together: their process group, hosts and interfaces.

They are started by torchrun, by `thinwire lab run`, or by the command line itself,
which sets the same variables.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError

_PATIENCE = timedelta(minutes=10)  # a dense all-reduce at 10 Mbit/s takes minutes


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """What is measured now, after `done` of `of` parts."""

    what: str
    done: int
    of: int


OnProgress = Callable[[ProgressEvent], None]


def ignore_progress(event: ProgressEvent) -> None:
    """Do nothing: for ranks other than 0."""


def launched() -> bool:
    """Whether a launcher has given this process a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def joined() -> Iterator[int]:
    """Join the process group over Gloo; yields this rank's number."""
    # It would turn every method into dense.
    os.environ.pop("THINWIRE", None)
    try:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    except ValueError as error:
        raise ConfigError(
            f"cannot join the other ranks ({error}): start this with torchrun, with "
            "thinwire lab run, or without RANK and WORLD_SIZE in the environment"
        ) from error
    try:
        yield dist.get_rank()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def gathered(mine: Any) -> list[Any]:
    """The values of all ranks, in order of rank, on every rank."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def slowest(seconds: float) -> float:
    """The longest time of any rank."""
    longest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Which ranks share a host or a machine."""

    hosts: tuple[int, ...]  # of every rank: the number of its network, from 0
    machines: tuple[int, ...]  # of every rank: the number of its machine, from 0

    @classmethod
    def found(cls) -> "Neighbours":
        """Ask every rank; a namespace or a container is a host of its own."""
        every = gathered((host_id(), machine_id()))
        hosts, machines = (list(column) for column in zip(*every, strict=True))
        return cls(_numbered(hosts), _numbered(machines))

    @property
    def ranks_per_host(self) -> int:
        """The most that share a host's link."""
        return max(Counter(self.hosts).values())

    @property
    def ranks_per_machine(self) -> int:
        """The most that share a machine's processors."""
        return max(Counter(self.machines).values())


class Interface:
    """The traffic that the kernel counts on an interface of this rank alone."""

    def __init__(self, folder: Path) -> None:
        self._sent = folder / "statistics" / "tx_bytes"

    @classmethod
    def own(cls, neighbours: Neighbours) -> "Interface | None":
        """The interface that Gloo uses; None where ranks share one."""
        name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        folder = Path("/sys/class/net") / name
        shared = neighbours.ranks_per_host > 1 or name.startswith("lo")
        there = not any(gathered(shared or not folder.exists()))
        return cls(folder) if there else None

    def sent(self) -> int:
        """Bytes since it came up, headers included."""
        return int(self._sent.read_text())


def host_id() -> str:
    """Whatever shares this process's network: a namespace is a host of its own."""
    network = Path("/proc/self/ns/net")
    return f"{machine_id()} {network.readlink() if network.exists() else ''}"


def machine_id() -> str:
    """Whatever shares this process's kernel and processors."""
    # Containers have their own host names; all share the kernel's boot id.
    start = Path("/proc/sys/kernel/random/boot_id")
    return start.read_text().strip() if start.exists() else socket.gethostname()


def _numbered(names: list[str]) -> tuple[int, ...]:
    order = list(dict.fromkeys(names))
    return tuple(order.index(name) for name in names)
