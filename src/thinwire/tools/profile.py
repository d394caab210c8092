"""A link profile: the file that `thinwire bench net` writes and others read.

Seconds and bytes per second throughout; a file is JSON, one object.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from thinwire.cost import Curve, Link, Rounds
from thinwire.errors import ConfigError

VERSION = 2
_VERSION_KEY = "thinwire_profile"
_REMEDY = "measure anew with thinwire bench net"

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Latency and bandwidth between the ranks of a run.

    Latency is that of a small message, one way. In matrices, a row is the sender's;
    a rank's place in its own row holds 0.
    """

    latency: float  # the median pair's
    pair: float  # bytes per second one way while all others are silent; median pair
    together: float  # bytes per second of a rank, each way, while all send: the slowest
    flow: float  # bytes per second of one connection between two hosts
    flows: float  # the same of several connections at once
    latencies: Matrix
    bandwidths: Matrix
    exchange: Curve  # of `rounds`
    direct: Curve
    all_reduce: Curve
    ranks: int
    hosts: int  # with a network of their own: machines, containers, hosts of a lab
    ranks_per_host: int  # the most that share one host's link
    ranks_per_machine: int  # the most that share one machine's processors
    cores: int  # of the machine of rank 0
    shaped: bool  # by a lab
    backend: str
    date: str  # ISO 8601

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if not check(value):
                raise ConfigError(f"{name} of a profile cannot be {value!r}; {_REMEDY}")
        for name in ("latencies", "bandwidths"):
            _check_matrix(name, getattr(self, name), self.ranks)
        for name in ("exchange", "direct", "all_reduce"):
            _check_curve(name, getattr(self, name))

    @property
    def link(self) -> Link:
        """For the cost cards: every rank sends and receives at once, as they do."""
        return Link(latency=self.latency, bandwidth=self.together)

    @property
    def rounds(self) -> Rounds:
        """How long rounds take by their bytes, while all ranks take part."""
        return Rounds(self.exchange, self.direct, self.all_reduce)

    @property
    def capped(self) -> bool:
        """Whether one connection gets less than several: less than nine tenths."""
        return self.flow < 0.9 * self.flows

    def write(self, path: Path) -> None:
        """Save it where `read` finds it."""
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
        text = json.dumps({_VERSION_KEY: VERSION, **asdict(self)}, indent=1)
        path.write_text(text + "\n")


def read(path: Path) -> Profile:
    """A profile that was saved; of any other file `ConfigError` says what is wrong."""
    if not path.is_file():
        raise ConfigError(f"cannot read {path}: there is no such file; {_REMEDY}")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:  # neither text nor JSON
        raise ConfigError(f"{path} is not JSON ({error}); {_REMEDY}") from error
    if not isinstance(found, dict) or _VERSION_KEY not in found:
        raise ConfigError(f"{path} is not a link profile; {_REMEDY}")
    version = found.pop(_VERSION_KEY)
    if version != VERSION:
        raise ConfigError(
            f"{path} is a link profile of version {version!r}, and only {VERSION} is "
            f"known here; {_REMEDY}"
        )
    try:
        return Profile(**typed(found))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def typed(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a profile, all of them and no others, from what JSON makes."""
    names = [each.name for each in fields(Profile)]
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in names]
    if missing or unknown:
        what = f"no {', '.join(missing)}" if missing else f"unknown {unknown[0]!r}"
        raise ConfigError(f"{what} in this profile; {_REMEDY}")
    return {name: _tuples(value) for name, value in found.items()}


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return _number(value) and 0 <= value < inf


def _rate(value: Any) -> bool:
    return _number(value) and 0 < value < inf


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "latency": _seconds,
    **dict.fromkeys(("pair", "together", "flow", "flows"), _rate),
    **dict.fromkeys(
        ("ranks", "hosts", "ranks_per_host", "ranks_per_machine", "cores"), _count
    ),
    "shaped": lambda value: isinstance(value, bool),
    "backend": lambda value: isinstance(value, str) and bool(value),
    "date": _date,
}


def _check_matrix(name: str, matrix: Any, ranks: int) -> None:
    square = (
        isinstance(matrix, tuple)
        and len(matrix) == ranks
        and all(isinstance(row, tuple) and len(row) == ranks for row in matrix)
    )
    if not square or not all(_seconds(value) for row in matrix for value in row):
        raise ConfigError(
            f"{name} of a profile are not {ranks} rows of {ranks} numbers; {_REMEDY}"
        )


def _check_curve(name: str, curve: Any) -> None:
    points = (
        isinstance(curve, tuple)
        and len(curve) > 0
        and all(isinstance(each, tuple) and len(each) == 2 for each in curve)  # noqa: PLR2004
        and all(_seconds(value) for each in curve for value in each)
    )
    rising = points and all(
        before < after and first <= then
        for (before, first), (after, then) in pairwise(curve)
    )
    if not rising:
        raise ConfigError(
            f"{name} of a profile are not rising pairs of bytes and seconds; {_REMEDY}"
        )
