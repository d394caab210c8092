"""Gloo's threads, made to wait for a core instead of pushing others aside.

A thread of Gloo's that finds a connection's lock taken asks for it again at once, and
again, until it is free. If a message has woken it on the core of the very thread that
holds the lock, in the middle of sending, then that one stands still and it spins: both
until the scheduler's next tick, 3 ms in every few exchanges where ranks share cores.
Batch threads push nobody aside when they wake; where a core is idle nothing changes.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NAME = "gloo_tcp_loop"

if sys.platform == "linux":

    def ask() -> None:
        """Of those that this process has; it takes no privilege."""
        # Not of threads whose owner has given them a policy. Some may end meanwhile,
        # and a sandbox may forbid it: then they go on as they are.
        with suppress(OSError):
            for thread in _THREADS.iterdir():
                with suppress(OSError):
                    _ask(thread)

    def _ask(thread: Path) -> None:
        number = int(thread.name)
        named = (thread / "comm").read_text().strip() == _NAME
        if named and os.sched_getscheduler(number) == os.SCHED_OTHER:
            os.sched_setscheduler(number, os.SCHED_BATCH, os.sched_param(0))

else:

    def ask() -> None:
        """Only Linux has such a policy."""
