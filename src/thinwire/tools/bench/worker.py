"""One rank of a measurement that the command line has started.

    python -m thinwire.tools.bench.worker net '{"shaped": true}'

Rank 0 prints what the command line reads, a line of JSON each: signs of life, then the
result; a failure that a user can act on is a line too, on any rank.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from thinwire.errors import ThinwireError
from thinwire.tools.bench import net, reduce, train
from thinwire.tools.bench.ranks import Beat, Tell, joined, say_nothing

MARK = "thinwire-bench "  # begins a line that is meant for the command line


class Job(Protocol):
    """What every rank measures together: a frozen dataclass of plain values."""

    def measure(self, tell: Tell) -> Any:
        """The same result on every rank; a dataclass."""
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
    """Measure, and say what was found."""
    name, settings = arguments
    try:
        job = JOBS[name](**json.loads(settings))
        with joined() as rank:
            result = job.measure(_tell if rank == 0 else say_nothing)
            if rank == 0:
                _print(message("result", asdict(result)))
    except ThinwireError as error:
        _print(message("error", str(error)))
        return 2
    except Exception:  # of any kind: whoever started this must learn of it
        _print(message("failure", traceback.format_exc()))
        return 1
    return 0


def _tell(beat: Beat) -> None:
    _print(message("beat", asdict(beat)))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
