"""State dicts of a hook: plain tensors and scalars, under parameter names, per rank.

Everything sits under a key that names rank and size, so that no two ranks write the
same key even where a checkpointing library merges their dicts. Units are one string:
a library that fills a template by its keys then needs no template of their shape.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.hooks.units import Units

FORMAT = 1

Residual = Literal["keep", "drop"]


def key_of(rank: int, size: int) -> str:
    """The key that one rank's entries are under.

    >>> key_of(0, 4)
    'rank 0 of 4'
    """
    return f"rank {rank} of {size}"


def entries_for(
    saved: Mapping[str, Any], rank: int, size: int, residual: Residual
) -> Mapping[str, Any]:
    """The entries of a state dict that this rank may load."""
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


def check_names(entries: Mapping[str, Any], units: Units, residual: Residual) -> None:
    """Refuse entries of another model, before anything changes."""
    shapes = dict(zip(units.layout.names, units.layout.shapes, strict=True))
    listed = [name for unit in units_of(entries) for name in unit]
    if sorted(listed) != sorted(shapes):
        strange = sorted(set(listed) ^ set(shapes)) or sorted(listed)
        raise ConfigError(
            f"a state dict of another model: it lists {len(listed)} parameters, this "
            f"model has {len(shapes)}; the first that differs is {strange[0]!r}"
        )
    if residual == "drop":
        return
    for kind, vectors in _vectors(entries).items():
        for name, tensor in vectors.items():
            if tuple(tensor.shape) != shapes.get(name):
                raise ConfigError(
                    f"a state dict of another model: {kind} of {name!r} has shape "
                    f"{tuple(tensor.shape)}, here it is {shapes.get(name)}"
                )


def units_of(entries: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """The units as they were saved."""
    try:
        return [tuple(map(str, unit)) for unit in json.loads(entries["units"])]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("a state dict whose units cannot be read") from error


def fill(units: Units, entries: Mapping[str, Any], residual: Residual) -> None:
    """Copy checked entries into the units."""
    saved = {} if residual == "drop" else _vectors(entries)
    held = {
        kind: {name: tensor.detach().clone() for name, tensor in vectors.items()}
        for kind, vectors in saved.items()
    }
    was_held = bool(held) and not entries["flushed"]
    remember = units.remember
    units.forget()
    units.regroup(units_of(entries))
    units.settled = bool(entries["settled"])
    if not (remember or was_held):
        return
    for state in units.states:
        state.step = int(entries["step"])
        state.memory.scale = float(entries["scale"])
    for kind, vectors in units.vectors().items():
        for name, view in vectors.items():
            if name in held.get(kind, {}):
                view.copy_(held[kind][name])


def dump(units: Units) -> dict[str, Any]:
    """What the units contribute to a state dict; tensors share their memory."""
    first = units.states[0] if units.remember and units.states else None
    return {
        "units": json.dumps([layout.names for layout in units.layouts]),
        "settled": units.settled,
        "step": 0 if first is None else first.step,
        "scale": 1.0 if first is None else first.memory.scale,
        **units.vectors(),
    }


def _vectors(entries: Mapping[str, Any]) -> dict[str, Mapping[str, Tensor]]:
    return {kind: held for kind, held in entries.items() if isinstance(held, Mapping)}
