"""Ranks that tell each other plain values, in bounded time, without a process group.

They meet at the store of their launcher, or of rank 0. A process group would need the
network that is under examination, and would not say who is missing.
"""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from thinwire.errors import ConfigError
from thinwire.tools.bench.ranks import launched
from thinwire.tools.doctor.bounded import within

_ADVICE = (
    "start this with torchrun, with thinwire lab run, or without RANK and WORLD_SIZE "
    "in the environment"
)
_LAST_WORDS = 5.0  # seconds to wait for ranks that are printing
_GRACE = 5.0  # seconds for the store itself to answer
_PAUSE = 0.02  # seconds between two looks at the store


class UnreachableError(Exception):
    """There is no store: what was tried, and why it failed."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """This rank's place among `size`; ranks wait `patience` seconds for each other."""

    rank: int
    size: int
    patience: float
    store: Store
    late: set[int] = field(default_factory=set)  # they are not waited for again

    def gather(
        self, what: str, mine: Any = None, *, patience: float | None = None
    ) -> dict[int, Any]:
        """The values of all ranks that are in time, in order of rank.

        Raises `UnreachableError` if the store is gone.
        """
        limit = self.patience if patience is None else patience
        try:
            # A store that is cut off is not noticed by torch.
            found = within(limit + _GRACE, lambda: self._exchange(what, mine, limit))
        except (RuntimeError, TimeoutError) as error:  # any of torch's
            said = str(error).partition("\n")[0] or "it does not answer"
            raise UnreachableError(f"the ranks' store is gone: {said}") from error
        self.late.update(set(range(self.size)) - found.keys())
        return found

    def _exchange(self, what: str, mine: Any, limit: float) -> dict[int, Any]:
        deadline = time.monotonic() + limit
        keys = {rank: f"{what}/{rank}" for rank in range(self.size)}
        self.store.set(keys[self.rank], json.dumps(mine))
        awaited = [key for rank, key in keys.items() if rank not in self.late]
        while not self.store.check(awaited) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return {
            rank: json.loads(self.store.get(key))
            for rank, key in keys.items()
            if self.store.check([key])
        }

    def leave(self) -> None:
        """Wait until all are done; rank 0, which may keep the store, leaves last."""
        with suppress(UnreachableError):
            self.gather("end", patience=_LAST_WORDS)
            if self.rank:
                self.store.set(f"gone/{self.rank}", "null")
            else:
                self.gather("gone", patience=_LAST_WORDS)


def place() -> tuple[int, int]:
    """This process's rank, and the number of ranks; alone if nothing launched it."""
    if not launched():
        return 0, 1
    rank, size = _given("RANK"), _given("WORLD_SIZE")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK is {rank} and WORLD_SIZE is {size}: {_ADVICE}")
    return rank, size


def meet(patience: float) -> Meeting:
    """Join the ranks that a launcher has started."""
    rank, size = place()
    if not launched():
        return Meeting(rank, size, patience, HashStore())
    host, port = os.environ.get("MASTER_ADDR", ""), _given("MASTER_PORT")
    of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    mine = rank == 0 and not of_launcher
    try:
        if not mine:
            _wait_for(host, port, patience)
        limit = timedelta(seconds=max(patience, 1.0))
        store = TCPStore(host, port, size, mine, limit, wait_for_workers=False)
    except (OSError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        who = "the launcher's store" if of_launcher else "rank 0"
        raise UnreachableError(f"{who} at {host} port {port}: {said}") from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Meeting(
        rank, size, patience, PrefixStore(f"thinwire doctor {attempt}", store)
    )


def _wait_for(host: str, port: int, patience: float) -> None:
    """Wait until something listens; torch's own attempt prints pages if it fails."""
    deadline = time.monotonic() + patience
    while True:
        left = max(deadline - time.monotonic(), 0.1)
        with suppress(ConnectionRefusedError):  # it may be starting
            socket.create_connection((host, port), left).close()
            return
        if time.monotonic() > deadline:
            raise ConnectionRefusedError(f"nothing listens there in {patience:g} s")
        time.sleep(_PAUSE)


def _given(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdigit():
        raise ConfigError(f"{name} is {value!r}: {_ADVICE}")
    return int(value)
