"""One process of a round: a rank of one life, or the store that the ranks meet at."""

import faulthandler
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from chaos.plan import Plan
from thinwire.tools.lab.enter import enter

STORE_SECONDS = 40.0


@dataclass(frozen=True)
class Place:
    """Where a rank lives: its number, its life, the store, files, what is planted."""

    rank: int
    life: int
    address: str
    port: int
    folder: Path
    network: int | None = None  # whose network it is on: the number of a process
    plant: str | None = None


class Line:
    """A connection to the conductor that any thread may write to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = Lock()

    def say(self, kind: str, what: Any = None) -> None:
        """Send a message."""
        with self._lock:
            self._connection.send((kind, what))

    def wait(self) -> None:
        """Wait for a message, or for the end of the connection."""
        with suppress(EOFError, OSError):
            self._connection.recv()


def keep_store(
    connection: Connection, address: str, port: int, network: int | None
) -> None:
    """Keep the store until the connection ends."""
    if network is not None:
        enter(network)
    _store = TCPStore(address, port, None, is_master=True, wait_for_workers=False)
    Line(connection).wait()
    os._exit(0)


def live(connection: Connection, plan: Plan, place: Place) -> None:
    """Be a rank of one life; what goes wrong untyped is said to the conductor too."""
    line = Line(connection)
    log = place.folder / f"life{place.life}-rank{place.rank}.log"
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if place.network is not None:
        enter(place.network)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if place.network is None else "eth0"
    store = TCPStore(
        place.address,
        place.port,
        None,
        plan.host == place.rank,
        timedelta(seconds=STORE_SECONDS),
        wait_for_workers=False,
    )
    size = plan.ranks[place.life]
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=size)
    from chaos.rank import Rank  # noqa: PLC0415 - plants may change what it imports

    rank = Rank(line, plan, place)
    rank.train()
    # The others may still ask the store, or need to see that this rank lives.
    line.wait()
    os._exit(0)
