"""Courier: one background thread that runs jobs in the order they were given."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]


class Courier:
    """Communication beside the backward pass; its jobs do not raise.

    The thread starts with the first job and is a daemon: a process that ends does not
    wait for it.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Run `job` after all that were submitted before."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="thinwire", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until every job submitted so far has run."""
        if self._thread is not None:
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()

    def _work(self) -> None:
        while True:
            self._jobs.get()()
