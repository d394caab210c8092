"""CommThread: a background thread that runs jobs in the order of submission."""

import atexit
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]

PATIENCE = 1.0  # seconds that an exit waits for the job that is running


class CommThread:
    """Runs communication in parallel with the backward pass; jobs must not raise.

    The thread starts with the first job and ends when this object is collected, or at
    exit. A process that exits waits for a job for a second at most, because the job may
    wait for a peer that is dead. One thread at a time may call the methods.
    """

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    def submit(self, job: Job) -> None:
        """Run `job` after all jobs submitted before."""
        if self._worker is None:
            self._worker = _Worker()
            self._worker.start()
            # The worker does not refer to this object, so that it can be collected.
            weakref.finalize(self, self._worker.end).atexit = False
        self._worker.jobs.put(job)

    def close(self) -> None:
        """End after the job that runs, for which it waits a second at most."""
        if self._worker is not None:
            self._worker.end()
            self._worker.join(PATIENCE)

    def drain(self) -> None:
        """Wait until every job submitted so far has run."""
        if self._worker is not None:
            done = threading.Event()
            self._worker.jobs.put(done.set)
            done.wait()


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="thinwire", daemon=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        _RUNNING.add(self)

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # else it stays alive until the next one comes

    def end(self) -> None:
        """End after the jobs submitted so far."""
        self.jobs.put(None)


_RUNNING: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter does.

    A thread that is back from a call into torch by then cannot take the interpreter's
    lock again, and the process aborts.
    """
    running = list(_RUNNING)
    for worker in running:
        worker.end()
    for worker in running:
        worker.join(PATIENCE)
