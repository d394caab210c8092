"""Defects to plant: a run of chaos must find each of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from thinwire.accumulator import Accumulator
from thinwire.errors import PeerError
from thinwire.groups import torch as groups
from thinwire.hooks.place import Place
from thinwire.reducers import Pipeline

STEP = 4


def drop() -> None:
    """Lose the first entry of every selection."""
    take = Accumulator.take

    def losing(self: Accumulator, *given: Any, **options: Any) -> Any:
        taken = take(self, *given, **options)
        for _, values in taken:
            values[:1] = 0.0
        return taken

    Accumulator.take = losing  # type: ignore[method-assign]


def trace() -> None:
    """Do not undo what was reduced before a bucket that is not finite."""
    Pipeline.undo_ = lambda self, state: None  # type: ignore[method-assign]


def lose() -> None:
    """Load what was saved by all ranks but the last of those that this one takes."""
    sources, replaced = Place.sources, cast(Any, Place)
    replaced.sources = lambda place, *then: sources(place, *then)[:-1]


def unnamed() -> None:
    """Raise errors that name no peer."""
    _diagnose(PeerError("someone is gone"))


def untyped() -> None:
    """Raise errors of another type."""
    _diagnose(RuntimeError("gone"))


def _diagnose(error: Exception) -> None:
    replaced: Any = groups
    replaced.diagnose = lambda failure, findings: error


def leak(model: torch.nn.Module, step: int) -> None:
    """Leave a file open in every step."""
    os.open(os.devnull, os.O_RDONLY)


def drift(model: torch.nn.Module, step: int) -> None:
    """Change a weight by one bit."""
    if step == STEP:
        next(model.parameters()).data.view(-1)[:1].nextafter_(torch.tensor(9.0))


def hang(model: torch.nn.Module, step: int) -> None:
    """Wait for ever, with everything done."""
    while step == STEP:
        Path("/proc/self/stat").read_text()


def forget(model: torch.nn.Module, step: int) -> None:
    """Leave shared memory behind."""
    if step == STEP:
        Path(f"/dev/shm/chaos-{os.getpid()}").touch()


AT_START: dict[str, Callable[[], None]] = {
    "drop": drop,
    "trace": trace,
    "lose": lose,
    "unnamed": unnamed,
    "untyped": untyped,
}
IN_STEPS: dict[str, Callable[[torch.nn.Module, int], None]] = {
    "leak": leak,
    "drift": drift,
    "hang": hang,
    "forget": forget,
}
PLANTS = (*AT_START, *IN_STEPS)
