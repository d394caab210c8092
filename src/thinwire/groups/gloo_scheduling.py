"""Scheduling of Gloo's threads: they do not preempt a thread that holds their lock.

A thread of Gloo's spins while the lock of a connection is taken. If a message wakes it
on the core of the thread that holds the lock, in the middle of a send, it preempts that
thread and spins until the scheduler's next tick: 3 ms in every few exchanges. A thread
with the policy SCHED_BATCH does not preempt others when it wakes. Gloo's threads have
this policy only while sends and receives are posted: with it, they would wait for a
backward pass that keeps all cores busy.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Threads = tuple[int, ...]
"""Threads, by the system's numbers."""

_THREADS = Path("/proc/self/task")
_NAME = b"gloo_tcp_loop"

if sys.platform == "linux":

    def gloo_threads() -> Threads:
        """The threads of Gloo that this process has by now."""
        found = []
        # Some may end meanwhile, and not every system shows them.
        with suppress(OSError):
            for thread in _THREADS.iterdir():
                with suppress(OSError):
                    if (thread / "comm").read_bytes().strip() == _NAME:
                        found.append(int(thread.name))
        return tuple(found)

    @contextmanager
    def as_batch(threads: Threads) -> Iterator[None]:
        """While it lasts, these threads have the policy SCHED_BATCH.

        This needs no privilege; where it is forbidden the policy does not change. A
        policy that was set elsewhere stays.
        """
        ordinary, batch = os.SCHED_OTHER, os.SCHED_BATCH
        changed = []
        try:
            for thread in threads:
                with suppress(OSError):
                    if os.sched_getscheduler(thread) == ordinary:
                        # First, so that it is restored in any case.
                        changed.append(thread)
                        os.sched_setscheduler(thread, batch, os.sched_param(0))
            yield
        finally:
            for thread in changed:
                with suppress(OSError):
                    if os.sched_getscheduler(thread) == batch:
                        os.sched_setscheduler(thread, ordinary, os.sched_param(0))

else:

    def gloo_threads() -> Threads:
        """Only Linux has such a policy."""
        return ()

    @contextmanager
    def as_batch(threads: Threads) -> Iterator[None]:
        """Nothing: only Linux has such a policy."""
        assert not threads
        yield
