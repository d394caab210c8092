"""One worker of the demo, which the command has started.

    python -m thinwire.tools.cli.demo_worker SETTINGS

Rank 0 prints lines of JSON for the command: progress, then the result.
"""

import json
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any

from thinwire.errors import ThinwireError
from thinwire.tools.bench.ranks import joined
from thinwire.tools.bench.worker import message
from thinwire.tools.demo.loop import ProgressEvent, Recipe
from thinwire.tools.demo.model import Shape
from thinwire.tools.demo.race import Settings, run

_SECONDS_BETWEEN_EVENTS = 0.2


def as_text(settings: Settings) -> str:
    """Settings, for the command line of a worker."""
    return json.dumps(asdict(settings))


def from_text(text: str) -> Settings:
    """Settings from the command line.

    >>> settings = Settings(("dense", "topk"), recipe=Recipe(warmup=(1, 2)))
    >>> from_text(as_text(settings)) == settings
    True
    """
    given = json.loads(text, object_hook=_with_tuples)
    recipe = given.pop("recipe")
    shape = Shape(**recipe.pop("shape"))
    return Settings(**given, recipe=Recipe(**recipe, shape=shape))


def _with_tuples(given: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}


class _Teller:
    """Prints what happens, but not all of it: a fast method makes many steps."""

    def __init__(self, rank: int) -> None:
        self._silent = rank != 0
        self._last = 0.0

    def __call__(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        soon = now < self._last + _SECONDS_BETWEEN_EVENTS and event.fraction < 1
        if not (self._silent or soon):
            self._last = now
            _print(message("progress", asdict(event)))


def main(arguments: list[str]) -> int:
    """Train with every method, and print what came of it or the error."""
    try:
        settings = from_text(arguments[0])
        with joined() as rank:
            runs = run(settings, _Teller(rank))
            if rank == 0:
                _print(message("result", {"runs": [asdict(each) for each in runs]}))
    except ThinwireError as error:
        _print(message("error", str(error)))
        return 2
    except Exception:  # of any kind: the command prints it
        _print(message("failure", traceback.format_exc()))
        return 1
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
