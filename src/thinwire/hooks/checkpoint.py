"""State dicts of a hook: tensors by parameter name, and scalars, for each rank.

Everything is under a key that names rank and size, so that no two ranks write the same
key if a checkpointing library merges their dicts. Units are saved as one string: a
library that loads into the existing keys then needs no keys for each unit.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.hooks.units import Units
from thinwire.reducers.sparse_gradients import integers, read

FORMAT = 1
_SCALARS = {
    "counters": str,
    "flushed": bool,
    "passes": int,
    "scale": float,
    "scope": str,
    "settled": bool,
    "step": int,
    "units": str,
}

Residual = Literal["keep", "drop"]


def key_of(rank: int, size: int) -> str:
    """The key of one rank's entries.

    >>> key_of(0, 4)
    'rank 0 of 4'
    """
    return f"rank {rank} of {size}"


def entries_for(
    saved: Mapping[str, Any], rank: int, size: int, residual: Residual
) -> Mapping[str, Any]:
    """The entries that this rank may load; a `ConfigError` if there are none."""
    if residual not in ("keep", "drop"):
        raise ConfigError(f"residual is {residual!r}: choose 'keep' or 'drop'")
    if saved.get("version") != FORMAT:
        raise ConfigError(
            f"a state dict of version {saved.get('version')!r}; this thinwire reads "
            f"{FORMAT}: was it made by state.state_dict()?"
        )
    key = key_of(rank, size)
    if key in saved:
        entries: Mapping[str, Any] = saved[key]
        return entries
    found = [name for name in saved if name.startswith("rank ")]
    if not found:
        raise ConfigError("a state dict without any rank's entries")
    entries = saved[found[0]]
    if entries["flushed"] or residual == "drop":
        return entries
    raise ConfigError(
        f"this is {key} and the state dict is of {', '.join(found)}: residuals differ "
        "from rank to rank. Load one file per rank; or load with residual='drop'; or "
        "call state.flush() before saving, after which rank 0's file serves all"
    )


def is_of_size(saved: Mapping[str, Any], size: int) -> bool:
    """Whether a state dict was saved with this number of ranks."""
    return any(key.endswith(f" of {size}") for key in saved)


def check(entries: Mapping[str, Any], units: Units, residual: Residual) -> None:
    """Refuse entries that are damaged or of another model; change nothing."""
    for key, kind in _SCALARS.items():
        if not isinstance(entries.get(key), kind):
            raise ConfigError(
                f"a damaged state dict: its {key!r} is {entries.get(key)!r}, not "
                f"{kind.__name__}"
            )
    shapes = dict(zip(units.layout.names, units.layout.shapes, strict=True))
    _same_names([name for unit in units_of(entries) for name in unit], shapes)
    read(entries.get("sparse", "{}"))
    _counters_of(entries)
    if residual == "drop" or entries["flushed"]:
        return
    vectors, kinds = _vectors(entries), units.kinds if shapes else set()
    if set(vectors) != kinds:
        raise ConfigError(
            f"a state dict that remembers {sorted(vectors)}, not {sorted(kinds)}: "
            "attach with the same feedback, or load with residual='drop'"
        )
    for what, held in vectors.items():
        _same_names(list(held), shapes)
        for name, tensor in held.items():
            if tuple(tensor.shape) != shapes[name]:
                raise ConfigError(
                    f"a state dict of another model: {what} of {name!r} has shape "
                    f"{tuple(tensor.shape)}, here it is {shapes[name]}"
                )


def _same_names(listed: Sequence[str], known: Mapping[str, object]) -> None:
    if sorted(listed) != sorted(known):
        strange = sorted(set(listed) ^ set(known)) or sorted(listed)
        raise ConfigError(
            f"a state dict of another model: it lists {len(listed)} parameters, this "
            f"model has {len(known)}; the first that differs is {strange[0]!r}"
        )


def units_of(entries: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """The names in each unit, as saved."""
    try:
        return [tuple(map(str, unit)) for unit in json.loads(entries["units"])]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("a state dict whose units cannot be read") from error


def _counters_of(entries: Mapping[str, Any]) -> Sequence[dict[str, int]]:
    """The `to_dict` of each unit's collective memory."""
    try:
        counters = [integers(unit) for unit in json.loads(entries["counters"])]
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError("a state dict whose counters cannot be read") from error
    # There are none if the units had no states.
    if counters and len(counters) != len(units_of(entries)):
        raise ConfigError(
            f"a damaged state dict: counters of {len(counters)} units, and "
            f"{len(units_of(entries))} units"
        )
    return counters


def fill(
    units: Units,
    entries: Mapping[str, Any],
    residual: Residual,
    *,
    scope: str,
    same_size: bool,
) -> None:
    """Copy checked entries into the units; another scope starts with one unit.

    The memories of collectives are loaded if they are of the `same_size`, also from
    another rank's entries, because all ranks must load the same.
    """
    saved = {} if residual == "drop" else _vectors(entries)
    held = {
        kind: {name: tensor.detach().clone() for name, tensor in vectors.items()}
        for kind, vectors in saved.items()
    }
    was_held = bool(held) and not entries["flushed"]
    remember = units.has_states
    units.forget()
    known = entries["scope"] == scope
    units.regroup(units_of(entries) if known else [units.layout.names])
    units.settled = known and entries["settled"]
    units.sparse.load(read(entries.get("sparse", "{}")) if same_size else {})
    if not (remember or was_held):
        return
    for state in units.states:
        state.step = int(entries["step"])
        state.memory.scale = float(entries["scale"])
    if known and same_size:
        for state, counters in zip(units.states, _counters_of(entries), strict=False):
            state.collective_memory.load_dict(counters)
    for kind, vectors in units.vectors().items():
        for name, view in vectors.items():
            if name in held.get(kind, {}):
                view.copy_(held[kind][name])


def dump(units: Units) -> dict[str, Any]:
    """The entries of the units; tensors share their memory."""
    states = units.existing_states
    first = states[0] if states else None
    return {
        "units": json.dumps([layout.names for layout in units.layouts]),
        "counters": json.dumps([state.collective_memory.to_dict() for state in states]),
        "sparse": units.sparse.dump(),
        "settled": units.settled,
        "step": 0 if first is None else first.step,
        "scale": 1.0 if first is None else first.memory.scale,
        **units.vectors(),
    }


def comparable(
    units: Units, passes: int
) -> tuple[dict[str, object], dict[str, object]]:
    """What must be equal on all ranks, and what on the ranks that have the same names.

    The memories of collectives decide which messages are sent: ranks with different
    ones would wait for each other, or misread messages.
    """
    dumped = dump(units)
    memories = [state.collective_memory for state in units.existing_states]
    texts = {
        "units": dumped["units"],
        "counters": json.dumps([memory.common() for memory in memories]),
        "sparse": dumped["sparse"],
    }
    common: dict[str, object] = {"passes so far": passes, "step": dumped["step"]}
    for key, text in texts.items():
        common[f"{key} (checksum)"] = zlib.crc32(text.encode())
    partial: dict[str, object] = {
        f"unit {number}, {key}": value
        for number, memory in enumerate(memories)
        for key, value in memory.partial().items()
    }
    return common, partial


def _vectors(entries: Mapping[str, Any]) -> dict[str, Mapping[str, Tensor]]:
    return {kind: held for kind, held in entries.items() if isinstance(held, Mapping)}
