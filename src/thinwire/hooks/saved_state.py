"""SavedState: what one rank loads, checked and, for another number of ranks, merged.

A state dict has the entries of one rank, or of several. Loaded by as many ranks as have
saved it, every rank takes its own entries, unchanged. Loaded by P' ranks after a save
of P, rank r takes the entries of all ranks j with j mod P' = r:

- Vectors (the residual, the velocity of momentum) are summed, times P' / P. The mean
  over ranks is what reaches the parameters: x of one of P ranks would have added x / P
  to it. So that it still does, it must be x P' / P on one of P' ranks. A velocity is a
  sum of gradients that goes into the residual later, so the same rule holds. A rank
  that takes nothing starts with zeros.
- Counts of steps, units, density and loss scale are the same on all ranks.
- What collectives remember (lengths, counts of rows, times of a trial) is of P ranks,
  and of each rank. It decides only which messages are sent. So it starts anew on all
  ranks if there are P', or if one of them does not load its own entries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.hooks.place import Place
from thinwire.hooks.shards import Shards
from thinwire.hooks.units import Names, Units
from thinwire.reducers.sparse_gradients import read as read_rows
from thinwire.saved_values import (
    counts,
    damaged,
    flag,
    integer,
    mapping,
    number,
    parsed,
    shown,
    tensor,
    text,
)

FORMAT = 1

Residual = Literal["keep", "drop"]
Missing = Literal["error", "drop"]
Vectors = Mapping[str, Mapping[str, Tensor]]

# Equal on all ranks that saved together.
_COMMON = ("passes", "step", "units", "scope", "settled", "flushed", "density")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Whether to load residuals, and what to do if those of a rank are missing."""

    residual: Residual = "keep"
    missing: Missing = "error"

    def check(self) -> None:
        """Refuse what is neither."""
        for option, value, other in (
            ("residual", self.residual, "keep"),
            ("missing", self.missing, "error"),
        ):
            if value not in (other, "drop"):
                raise ConfigError(
                    f"{option} is {shown(value)}: choose {other!r} or 'drop'"
                )


@dataclass(frozen=True, slots=True)
class Entries:
    """The checked entries of one rank, but for its vectors."""

    units: list[Names]
    counters: list[dict[str, int]]
    sparse: dict[str, dict[str, int]]
    scope: str
    settled: bool
    flushed: bool
    passes: int
    step: int
    scale: float
    density: float | None


@dataclass(frozen=True, slots=True)
class SavedState:
    """What this rank loads.

    `own` says whether every rank loads its own entries. `vectors` are None where
    nothing is held: after a flush, or to be dropped. `dropped` are the places whose
    vectors should be here and are missing.
    """

    entries: Entries
    own: bool
    vectors: Vectors | None
    dropped: tuple[Place, ...]


def read(
    saved: object,
    units: Units,
    shards: Shards | Place,
    options: LoadOptions = LoadOptions(),  # noqa: B008 - it is frozen
    *,
    name: Callable[[Place], str] = lambda place: place.key,
) -> SavedState:
    """What the rank at a place, or with these shards, loads; changes nothing.

    `name` says where the entries of a rank should have been.
    """
    options.check()
    by_place = _by_place(saved)
    checked = {each: _checked(by_place[each], units) for each in by_place}
    _check_together(by_place, name)
    place = shards if isinstance(shards, Place) else shards.place
    then = next(iter(by_place))
    wanted = place.sources(then.size, then.shards)
    present = [each for each in wanted if each in by_place]
    first = checked[present[0] if present else then]
    own = place in by_place
    if options.residual == "drop" or first.flushed:
        return SavedState(first, own, None, ())
    absent = tuple(each for each in wanted if each not in by_place)
    if absent and options.missing == "error":
        raise ConfigError(
            f"this is {place.key} and the state dict is of "
            f"{', '.join(each.key for each in by_place)}; missing: "
            f"{', '.join(name(each) for each in absent)}. Residuals differ "
            "from rank to rank: load one file per rank, or those of all ranks on every "
            "rank; or load with missing='drop' to go on without what is missing, or "
            "residual='drop' without any residual; or call state.flush() before "
            "saving, after which rank 0's file serves all"
        )
    if then.shards == place.shards:
        held: list[Vectors] = [_vectors_of(by_place[p], units) for p in present]
    else:
        lost = {each.rank for each in absent}
        present = [each for each in present if each.rank not in lost]
        held, present = _recut(by_place, present, units, shards)
    if then.size == place.size:
        vectors = held[0] if held else {}
    else:
        scales = [checked[each].scale for each in present]
        vectors = _merged(held, scales, factor=place.size / then.size)
    return SavedState(first, own, vectors, absent)


def _recut(
    by_place: Mapping[Place, Mapping[str, Any]],
    present: Sequence[Place],
    units: Units,
    shards: Shards | Place,
) -> tuple[list[Vectors], list[Place]]:
    """The vectors of this shard, from other ones of every rank; and one place of each.

    Residuals are kept by name as plain tensors, so the pieces of a parameter are put
    together along the dimension that is cut, and cut anew.
    """
    if isinstance(shards, Place):
        raise ConfigError(
            "a state dict of a sharded model, and this one is not: shard it with "
            "fully_shard, over any number of ranks, or load with residual='drop'"
        )
    held: list[Vectors] = []
    firsts = [each for each in present if each.shard == 0]
    for first in firsts:
        pieces = [
            _vectors_of(by_place[each], units, shards.shapes(each.shard, each.shards))
            for each in present
            if each.rank == first.rank
        ]
        held.append(
            {
                kind: {
                    name: shards.cut([each[kind][name] for each in pieces], name)
                    for name in units.layout.names
                }
                for kind in pieces[0]
            }
        )
    return held, firsts


def _by_place(saved: object) -> dict[Place, Mapping[str, Any]]:
    """Entries by place, sorted."""
    saved = mapping(saved, "state dict")
    version = saved.get("version")
    if type(version) is not int or version != FORMAT:
        raise ConfigError(
            f"a state dict of version {shown(version)}; this thinwire reads {FORMAT}: "
            "was it made by state.state_dict()?"
        )
    found: dict[Place, Mapping[str, Any]] = {}
    for key, entries in saved.items():
        place = Place.named(key)
        if place is not None:
            if place.impossible:
                raise damaged("key of state dict", key, "a rank below its size")
            found[place] = mapping(entries, key)
    if not found:
        raise ConfigError("a state dict without any rank's entries")
    if len({(place.size, place.shards) for place in found}) > 1:
        raise ConfigError(
            f"a mixed set: {', '.join(place.key for place in sorted(found))} were "
            "not saved together. Give those of one save"
        )
    return {place: found[place] for place in sorted(found)}


def _check_together(
    by_place: Mapping[Place, Mapping[str, Any]], name: Callable[[Place], str]
) -> None:
    """Refuse entries of different saves."""
    first, *others = by_place
    for place in others:
        for field in _COMMON:
            mine, theirs = by_place[first].get(field), by_place[place].get(field)
            if mine != theirs:
                raise ConfigError(
                    f"a mixed set: {field!r} is {shown(mine)} in "
                    f"{name(first)}, {shown(theirs)} in {name(place)}. Give the "
                    "files of one save"
                )


def _checked(entries: Mapping[str, Any], units: Units) -> Entries:
    listed = _units_of(entries.get("units"))
    _same_names("units", [name for unit in listed for name in unit], units)
    counters = _counters_of(entries.get("counters"))
    # There are none if the units had no states.
    if counters and len(counters) != len(listed):
        raise ConfigError(
            f"a damaged state dict: its 'counters' are of {len(counters)} units, and "
            f"it has {len(listed)} units. Load an earlier checkpoint"
        )
    scope = text(entries.get("scope"), "scope")
    if scope not in ("bucket", "model"):
        raise damaged("scope", scope, "'bucket' or 'model'")
    density = entries.get("density")
    return Entries(
        listed,
        counters,
        read_rows(entries.get("sparse", "{}")),
        scope,
        flag(entries.get("settled"), "settled"),
        flag(entries.get("flushed"), "flushed"),
        integer(entries.get("passes"), "passes"),
        integer(entries.get("step"), "step"),
        number(entries.get("scale"), "scale", strict=True),
        None if density is None else number(density, "density", strict=True, most=1.0),
    )


def _units_of(value: object) -> list[Names]:
    units = parsed(value, "units")
    if not isinstance(units, list):
        raise damaged("units", units, "a list of lists of names")
    for unit in units:
        names = isinstance(unit, list) and all(isinstance(each, str) for each in unit)
        if not names or not unit:
            raise damaged("units", unit, "a list of lists of names")
    return [tuple(unit) for unit in units]


def _counters_of(value: object) -> list[dict[str, int]]:
    """The `to_dict` of each unit's collective memory."""
    counters = parsed(value, "counters")
    if not isinstance(counters, list):
        raise damaged("counters", counters, "a list")
    return [counts(each, "counters") for each in counters]


def _vectors_of(
    entries: Mapping[str, Any],
    units: Units,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """The vectors by kind and parameter, checked."""
    if shapes is None:
        shapes = dict(zip(units.layout.names, units.layout.shapes, strict=True))
    wanted = units.kinds if shapes else set()
    found = {kind for kind, held in entries.items() if isinstance(held, Mapping)}
    for kind in sorted(wanted & entries.keys()):
        mapping(entries[kind], kind)
    if found != wanted:
        raise ConfigError(
            f"a state dict that remembers {sorted(found)}, not {sorted(wanted)}: "
            "attach with the same feedback, or load with residual='drop'"
        )
    checked: dict[str, dict[str, Tensor]] = {}
    for kind in wanted:
        held = mapping(entries[kind], kind)
        _same_names(kind, list(held), units)
        checked[kind] = {
            name: tensor(each, f"{kind} of {name}", shapes[name])
            for name, each in held.items()
        }
    return checked


def _same_names(field: str, listed: Sequence[str], units: Units) -> None:
    known = units.layout.names
    if sorted(listed) != sorted(known):
        strange = sorted(set(listed) ^ set(known)) or sorted(listed)
        raise ConfigError(
            f"a state dict of another model: its {field!r} lists {len(listed)} "
            f"parameters, this model has {len(known)}; the first that differs is "
            f"{shown(strange[0])}"
        )


def _merged(held: Sequence[Vectors], scales: Sequence[float], factor: float) -> Vectors:
    """The sum in the first one's loss scale, times a factor, rounded once."""
    merged: dict[str, dict[str, Tensor]] = {}
    for kind, vectors in (held[0] if held else {}).items():
        merged[kind] = {}
        for name, first in vectors.items():
            total = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
            for each, scale in zip(held, scales, strict=True):
                other = each[kind][name].to(first.device, torch.float64)
                total.add_(other, alpha=scales[0] / scale)
            value = total.mul_(factor).float()
            merged[kind][name] = tensor(value, f"sum of {kind} of {name}", first.shape)
    return merged
