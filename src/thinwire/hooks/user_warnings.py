"""Warnings that point at the user's code and say how to leave them out."""

import inspect
import warnings
from typing import Any


def warn(text: str) -> None:
    """Warn of what the first caller outside of torch and thinwire does."""
    warnings.warn(
        f"{text}. attach(..., warn=False) or THINWIRE=quiet in the environment leaves "
        "this warning out",
        stacklevel=_stack_level(),
    )


def _stack_level() -> int:
    frame, level = inspect.currentframe(), 0
    while frame is not None and _top_package(frame) in ("torch", "thinwire"):
        frame, level = frame.f_back, level + 1
    return level


def _top_package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
