"""State dicts of a hook: tensors by parameter name, and scalars, for each rank.

Everything is under a key that names rank and size, so that no two ranks write the same
key if a checkpointing library merges their dicts. Units are saved as one string: a
library that loads into the existing keys then needs no keys for each unit.
"""

import json
import zlib
from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from thinwire.hooks.place import Place
from thinwire.hooks.saved_state import SavedState
from thinwire.hooks.units import Units


def fill(units: Units, saved: SavedState, *, scope: str) -> None:
    """Copy what was read into the units; another scope starts with one unit.

    The memories of collectives are loaded on all ranks, or start anew on all of them:
    ranks with different ones would send different messages.
    """
    entries = saved.entries
    holds = saved.vectors is not None and bool(units.kinds)
    remember = units.has_states
    units.forget()
    known = entries.scope == scope
    names = units.layout.names
    units.regroup(entries.units if known else [names] if names else [])
    units.settled = known and entries.settled
    units.sparse.load(entries.sparse if saved.own else {})
    if not (remember or holds):
        return
    for state in units.states:
        state.step = entries.step
        state.memory.scale = entries.scale
    if known and saved.own:
        for state, counters in zip(units.states, entries.counters, strict=False):
            state.collective_memory.load_dict(counters)
    for kind, vectors in units.vectors().items():
        for name, view in vectors.items():
            if name in (saved.vectors or {}).get(kind, {}):
                view.copy_((saved.vectors or {})[kind][name])


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
    units: Units, passes: int, place: Place
) -> tuple[dict[str, object], dict[str, object]]:
    """What must be equal on all ranks, and what on the ranks that have the same names.

    The memories of collectives decide which messages are sent: ranks with different
    ones would wait for each other, or misread messages.
    """
    dumped = dump(units)
    memories = [state.collective_memory for state in units.existing_states]
    common: dict[str, object] = {"passes so far": passes, "step": dumped["step"]}
    for key in ("units", "sparse"):
        common[f"{key} (checksum)"] = zlib.crc32(dumped[key].encode())
    # Ranks with another shard do not reduce together, so theirs may differ.
    shard = f"shard {place.shard}, " if place.shards > 1 else ""
    counters = json.dumps([memory.common() for memory in memories])
    partial: dict[str, object] = {
        f"{shard}counters (checksum)": zlib.crc32(counters.encode())
    }
    partial |= {
        f"{shard}unit {number}, {key}": value
        for number, memory in enumerate(memories)
        for key, value in memory.partial().items()
    }
    return common, partial


def norms(units: Units) -> dict[str, float]:
    """The norm of each kind of vector, without the loss scale."""
    scale = dump(units)["scale"]
    return {
        kind: _norm(vectors.values()) / scale
        for kind, vectors in units.vectors().items()
    }


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = (vector_norm(each, dtype=torch.float64).item() for each in tensors)
    return sqrt(sum(norm * norm for norm in norms))
