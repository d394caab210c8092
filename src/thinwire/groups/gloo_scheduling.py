"""Gloo's threads, kept from pushing aside the thread that holds the lock they want.

A thread of Gloo's that finds a connection's lock taken asks for it again at once, and
again, until it is free. If a message has woken it on the core of the very thread that
holds the lock, in the middle of sending, then that one stands still and it spins: both
until the scheduler's next tick, 3 ms in every few exchanges. Batch threads push nobody
aside when they wake. They are that while messages are handed over, and no longer:
where a backward pass keeps all cores busy, they would wait for it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Loops = tuple[int, ...]
"""Threads, by the system's numbers."""

_THREADS = Path("/proc/self/task")
_NAME = b"gloo_tcp_loop"

if sys.platform == "linux":

    def loops() -> Loops:
        """Gloo's threads of this process, as far as they are known by now."""
        found = []
        # Some may end meanwhile, and not every system shows them.
        with suppress(OSError):
            for thread in _THREADS.iterdir():
                with suppress(OSError):
                    if (thread / "comm").read_bytes().strip() == _NAME:
                        found.append(int(thread.name))
        return tuple(found)

    @contextmanager
    def kept_back(loops: Loops) -> Iterator[None]:
        """While it lasts, they push no thread aside when they wake.

        It takes no privilege, and where it is forbidden they are as they were. A policy
        that somebody else chooses stays.
        """
        ordinary, batch = os.SCHED_OTHER, os.SCHED_BATCH
        asked = []
        try:
            for loop in loops:
                with suppress(OSError):
                    if os.sched_getscheduler(loop) == ordinary:
                        asked.append(loop)  # first: whatever happens, it is let go
                        os.sched_setscheduler(loop, batch, os.sched_param(0))
            yield
        finally:
            for loop in asked:
                with suppress(OSError):
                    if os.sched_getscheduler(loop) == batch:
                        os.sched_setscheduler(loop, ordinary, os.sched_param(0))

else:

    def loops() -> Loops:
        """Only Linux has such a policy."""
        return ()

    @contextmanager
    def kept_back(loops: Loops) -> Iterator[None]:
        """Nothing can be done."""
        assert not loops
        yield
