"""Processes that load the other cores while a rank is measured.

They use memory bandwidth: two cores that accumulate at once are far from twice as fast
as one. Run as a module, this is such a process: it reduces until it is ended.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 7
"""More take long to start, and do not keep memory busier."""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` cores busy with other processes while the context lasts."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(min(count, MOST))
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _work() -> None:
    # Not where neighbours are only started: this takes a second to import.
    from thinwire.tools.plan.calibrate import keep_busy  # noqa: PLC0415

    for step, _ in enumerate(keep_busy()):
        if step == 0:
            sys.stdout.write("busy\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _work()
