"""One rank of a measurement that the command line has started.

    python -m thinwire.tools.bench.worker net '{"shaped": true}'

Rank 0 prints lines of JSON for the command line: progress, then the result. Any rank
prints a line for an error that a user can act on.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from thinwire.errors import ThinwireError
from thinwire.tools.bench import net, reduce, train
from thinwire.tools.bench.ranks import (
    OnProgress,
    ProgressEvent,
    ignore_progress,
    joined,
)

MARK = "thinwire-bench "  # begins a line for the command line


class Job(Protocol):
    """A measurement of all ranks together: a frozen dataclass of plain values."""

    def measure(self, on_progress: OnProgress) -> Any:
        """Return the same result, a dataclass, on every rank."""
        ...


JOBS: Mapping[str, Callable[..., Job]] = {
    "net": net.Settings,
    "reduce": reduce.Settings,
    "train": train.Settings,
}


def message(kind: str, content: Any) -> str:
    """A line for the command line."""
    return MARK + json.dumps({kind: content})


def main(arguments: list[str]) -> int:
    """Measure, and print the result or the error."""
    name, settings = arguments
    try:
        job = JOBS[name](**json.loads(settings))
        with joined() as rank:
            result = job.measure(_print_progress if rank == 0 else ignore_progress)
            if rank == 0:
                _print(message("result", asdict(result)))
    except ThinwireError as error:
        _print(message("error", str(error)))
        return 2
    except Exception:  # of any kind: the command line prints it
        _print(message("failure", traceback.format_exc()))
        return 1
    return 0


def _print_progress(event: ProgressEvent) -> None:
    _print(message("progress", asdict(event)))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
