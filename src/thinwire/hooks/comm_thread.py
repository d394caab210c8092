"""CommThread: a background thread that runs jobs in the order of submission."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]


class CommThread:
    """Runs communication in parallel with the backward pass; jobs must not raise.

    The thread starts with the first job and ends when this object is collected; a
    process that exits does not wait for it. One thread at a time may call the methods.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = False

    def submit(self, job: Job) -> None:
        """Run `job` after all jobs submitted before."""
        if not self._started:
            self._started = True
            # The thread refers to the queue only, so that this object can be collected.
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
        del job  # else it stays alive until the next one comes
