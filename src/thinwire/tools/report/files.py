"""Files of figures: what commands write with --json, and what reports read."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.tools.report.words import DENSE

KIND = "thinwire_bench"
VERSION = 1

RESULTS = "results"
"""Of `python -m experiments.train`, whose files say nothing of what they are."""

_PLANNED = ("label", "method", "step_s", "bytes_sent", "parts_s", "held_accuracy")
# Of each kind of figures, what is in them, the name of their rows, what is in those.
_NEEDED: Mapping[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "reduce": (
        (
            *("size", "density", "ranks", "place", "rate", "floor", "machine", "date"),
            *("rows", "repeats", "ranks_per_machine"),
        ),
        "rows",
        (
            *("label", "method", "seconds", "low", "high", "cpu", "sent", "wire"),
            *("phases", "error", "forecast", "walls"),
        ),
    ),
    "train": (
        ("model", "parameters", "ranks", "place", "rate", "machine", "date", "rows"),
        "rows",
        ("label", "seconds", "low", "high", "sent"),
    ),
    "plan": (
        (
            *("parameters", "workers", "setting", "assumed", "verdict", "accuracy"),
            *("dense_is_best", "recommended", "forecasts"),
        ),
        "forecasts",
        (*_PLANNED, "behind_dense"),
    ),
    "curves": (("title", "axes", "series"), "series", ("label", "points", "ours")),
}
# What the other rows of a kind are compared with.
_DENSE = {"reduce": DENSE, "train": DENSE, "plan": "dense"}
_NEEDED_RESULT = ("task", "workers", "metric_name", "result", "seconds", "device")
_REMEDY = (
    "give files that thinwire bench reduce, bench train, plan or python -m "
    "experiments.train wrote with --json"
)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written; one that is there stays as it is."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; give a file in it")
    may = os.access(path, os.W_OK) if path.exists() else _can_be_made(path)
    if not may:
        raise ConfigError(f"cannot write {path}: this user may not; give another file")


def _can_be_made(path: Path) -> bool:
    try:
        path.touch()
    except OSError:
        return False
    path.unlink(missing_ok=True)  # another rank may have done so
    return True


def read(path: Path) -> list[dict[str, Any]]:
    """The figures of a file, one set or, in .jsonl, one in each line.

    Any other file is an error.
    """
    if not path.is_file():
        raise ConfigError(f"cannot read {path}: there is no such file; {_REMEDY}")
    try:
        text = path.read_text(encoding="utf-8")
        parts = text.splitlines() if path.suffix == ".jsonl" else [text]
        found = [json.loads(part) for part in parts if part.strip()]
    except ValueError as error:  # neither text nor JSON
        raise ConfigError(f"{path} is not JSON ({error}); {_REMEDY}") from error
    try:
        if not found:
            raise ConfigError("it is empty")
        for figures in found:
            check(figures)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; {_REMEDY}") from error
    return found


def kind(figures: Mapping[str, Any]) -> str:
    """What they are figures of."""
    named = figures.get(KIND)
    is_result = named is None and {"history", "reduction"} <= figures.keys()
    return RESULTS if is_result else str(named)


def check(figures: object) -> None:
    """Refuse what is not a set of figures, and say what is missing."""
    found = kind(figures) if isinstance(figures, dict) else ""
    if not isinstance(figures, dict) or found not in {*_NEEDED, RESULTS}:
        raise ConfigError("there are no figures in it")
    if found == RESULTS:
        _has(figures, _NEEDED_RESULT)
        return
    if figures.get("version") != VERSION:
        raise ConfigError(f"figures of version {figures.get('version')!r}")
    needed, name, of_rows = _NEEDED[found]
    rows = figures.get(name)
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"it has no {name}")
    _has(figures, needed)
    for row in rows:
        _has(row, of_rows)
    labels = [row["label"] for row in rows]
    for label in (_DENSE.get(found), figures.get("recommended")):
        if label is not None and label not in labels:
            raise ConfigError(f"it has no row {label!r}")


def _has(found: object, needed: tuple[str, ...]) -> None:
    known = found if isinstance(found, dict) else {}
    missing = [name for name in needed if name not in known]
    if missing:
        raise ConfigError(f"it has no {', '.join(missing)}")


def compact(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures for a file that is kept: 8 digits, without walls and phases of methods.

    >>> compact({"ranks": 4, "rows": [{"seconds": 0.123456789, "walls": [0.1]}]})
    {'ranks': 4, 'rows': [{'seconds': 0.12345679}]}
    """
    rows = [
        {name: row[name] for name in row if name not in {"walls", "phases"}}
        for row in figures["rows"]
    ]
    kept: dict[str, Any] = rounded({**figures, "rows": rows})
    return kept


def rounded(value: Any, digits: int = 8) -> Any:
    """A value of JSON in which every float has at most `digits` digits.

    >>> rounded({"a": [1.2345678, 100_000_000, 14.0]}, 3)
    {'a': [1.23, 100000000, 14.0]}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return value
