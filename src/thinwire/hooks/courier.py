"""Courier: one background thread that runs jobs in the order they were given."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]


class Courier:
    """Communication beside the backward pass; its jobs do not raise.

    The thread starts with the first job and ends with the courier; a process that ends
    does not wait for it.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = False

    def submit(self, job: Job) -> None:
        """Run `job` after all that were submitted before."""
        if not self._started:
            self._started = True
            # The thread knows the queue alone, so that it keeps no courier alive.
            weakref.finalize(self, self._jobs.put, None)
            threading.Thread(
                target=_work, args=(self._jobs,), name="thinwire", daemon=True
            ).start()
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until every job submitted so far has run."""
        if self._started:
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()


def _work(jobs: "SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would live on until the next one comes
