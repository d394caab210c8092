"""Files of figures: what `thinwire bench` writes and its reports read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError

KIND = "thinwire_bench"
VERSION = 1

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "reduce": (
        *("size", "density", "ranks", "place", "rate", "floor", "machine", "date"),
        *("rows", "repeats", "ranks_per_machine"),
    ),
    "train": (
        "model",
        "parameters",
        "ranks",
        "place",
        "rate",
        "machine",
        "date",
        "rows",
    ),
}
_NEEDED_OF_ROWS: Mapping[str, tuple[str, ...]] = {
    "reduce": (
        *("label", "method", "seconds", "low", "high", "cpu", "sent", "wire", "phases"),
        *("error", "forecast", "walls"),
    ),
    "train": ("label", "seconds", "low", "high", "sent"),
}
_REMEDY = "give files that thinwire bench reduce or train wrote with --json"


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is not there."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")


def read(path: Path) -> dict[str, Any]:
    """The figures of a file; any other file is an error."""
    if not path.is_file():
        raise ConfigError(f"cannot read {path}: there is no such file; {_REMEDY}")
    try:
        figures = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); {_REMEDY}") from error
    try:
        check(figures)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; {_REMEDY}") from error
    found: dict[str, Any] = figures
    return found


def check(figures: object) -> None:
    """Refuse what is not a set of figures, and say what is missing."""
    if not isinstance(figures, dict) or figures.get(KIND) not in _NEEDED:
        raise ConfigError("there are no figures in it")
    if figures.get("version") != VERSION:
        raise ConfigError(f"figures of version {figures.get('version')!r}")
    kind = figures[KIND]
    rows = figures.get("rows")
    if not isinstance(rows, list) or not rows:
        raise ConfigError("it has no rows")
    for needed, found in [
        (_NEEDED[kind], figures),
        *((_NEEDED_OF_ROWS[kind], row) for row in rows),
    ]:
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
