"""State dicts in a checkpoint of torch.distributed.checkpoint, of any number of ranks.

`dcp.load` asks for the keys of this number of ranks, which a save of another number
does not have. Here the checkpoint itself says which keys there are.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from thinwire.errors import ConfigError
from thinwire.hooks.place import Place

_Path = tuple[Any, ...]


def read(folder: Path, place: Place) -> dict[str, Any]:
    """The state dict in a checkpoint, with the entries that this rank needs."""
    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    paths: dict[str, _Path] = metadata.planner_data or {}
    where, names = _only_one(folder, paths)
    then = min(names)
    wanted = [".".join(map(str, (*where, "version")))]
    for each in place.sources(then.size, then.shards) or [then]:
        wanted += names.get(each, [])
    found: dict[Any, Any] = {}
    for name in wanted:
        held = metadata.state_dict_metadata[name]
        empty = None
        if isinstance(held, TensorStorageMetadata):
            empty = torch.empty(held.size, dtype=held.properties.dtype)
        at = found
        for part in paths[name][:-1]:
            at = at.setdefault(part, {})
        at[paths[name][-1]] = empty
    load(found, storage_reader=reader, no_dist=True)
    for part in where:
        found = found[part]
    return found


def _only_one(
    folder: Path, paths: dict[str, _Path]
) -> tuple[_Path, dict[Place, list[str]]]:
    """Where the state dict is, and the names of its entries by rank and size."""
    found: dict[_Path, dict[Place, list[str]]] = {}
    for name, path in paths.items():
        for depth, part in enumerate(path):
            place = Place.named(part)
            if place is not None:
                found.setdefault(path[:depth], {}).setdefault(place, []).append(name)
    if len(found) != 1:
        raise ConfigError(
            f"{folder} has {len(found)} state dicts of thinwire, at "
            f"{sorted(map(str, found))}: load it with torch.distributed.checkpoint, "
            "and give the one of this model to load_state_dict"
        )
    return next(iter(found.items()))
