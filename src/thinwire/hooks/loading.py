"""Sources of state dicts: a folder of `save`, one of torch's DCP, or single files."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any

from thinwire.errors import AgreementError, ConfigError
from thinwire.groups import Group
from thinwire.hooks import saved_state
from thinwire.hooks.place import Place
from thinwire.hooks.saved_state import (
    FORMAT,
    LoadOptions,
    SavedState,
)
from thinwire.hooks.saving import (
    MANIFEST,
    read_file,
    read_manifest,
    read_written,
    together,
)
from thinwire.hooks.shards import Shards
from thinwire.hooks.units import Units

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Source:
    """A state dict with the entries that a rank needs, and where they are from.

    `save` is equal on all ranks that load the same. `names` has the files of ranks that
    were found or are missing, `norms` those of their vectors, where they are known.
    """

    state: object
    also: dict[str, Any] = field(default_factory=dict)
    save: str = ""
    names: Mapping[Place, str] = field(default_factory=dict)
    norms: Mapping[Place, Mapping[str, float]] = field(default_factory=dict)

    def name(self, place: Place) -> str:
        """What to call the entries of a rank."""
        file = self.names.get(place)
        return place.key + (f" ({file})" if file else "")


def open_source(
    path: PathLike | Sequence[PathLike],
    place: Place,
    *,
    skip: bool,
    required: bool,
) -> Source | None:
    """What this rank needs of a save; None if a folder has none and none is `required`.

    `skip` files that are given and are not there.
    """
    if not isinstance(path, str | os.PathLike):
        return _from_files([Path(each) for each in path], skip=skip)
    folder = Path(path)
    if folder.is_file():
        return _from_files([folder], skip=skip)
    if (folder / ".metadata").exists() and not (folder / MANIFEST).exists():
        # Imported here, because it takes most of a second.
        return Source(import_module("thinwire.hooks.dcp").read(folder, place))
    found = _from_save(folder, place)
    if found is None and required:
        raise ConfigError(
            f"{folder} has no complete save: give the folder that state.save(folder) "
            "has written, or load with required=False to start without one"
        )
    return found


def load_together(
    open_: Callable[[], Source | None],
    units: Units,
    options: LoadOptions,
    shards: Shards | Place,
    *,
    group: Group,
) -> tuple[Source, SavedState] | None:
    """What each rank loads, opened and checked on all of them; warns of what is lost.

    None if there is no save. Nothing has changed if this raises.
    """

    def read() -> tuple[tuple[Source, SavedState] | None, object]:
        source = open_()
        if source is None:
            return None, ("none", (), False)
        saved = saved_state.read(source.state, units, shards, options, name=source.name)
        dropped = [each.key for each in saved.dropped]
        return (source, saved), (source.save, dropped, saved.own)

    found, notes = together(group, units.device, read, call="load")
    saves = [save for save, *_ in notes]
    if len(set(saves)) > 1:
        raise AgreementError(
            f"ranks see different saves, {', '.join(saves)}: give a folder that all "
            "ranks share"
        )
    places = {Place.named(each) for _, lost, _ in notes for each in lost}
    dropped = sorted(each for each in places if each is not None)
    if found is not None and dropped and group.rank == 0:
        _warn_of(dropped, found[0])
    if found is None:
        return None
    source, saved = found
    return source, replace(saved, own=all(own for *_, own in notes))


def _warn_of(dropped: Sequence[Place], source: Source) -> None:
    """Say what was lost, and how much if another file has a record of it."""
    lost = []
    for place in dropped:
        norms = source.norms.get(place)
        size = "of a norm that no file records"
        if norms is not None:
            size = ", ".join(f"{kind} of norm {n:.4g}" for kind, n in norms.items())
        lost.append(f"{source.name(place)}: {size}")
    of_all = Counter[str]()
    for norms in source.norms.values():
        of_all.update({kind: norm * norm for kind, norm in norms.items()})
    total = ", ".join(f"{kind} {sqrt(square):.4g}" for kind, square in of_all.items())
    warnings.warn(
        "missing='drop': training goes on without what these ranks had not delivered. "
        + "; ".join(lost)
        + (f" (all ranks together: {total})" if total else ""),
        stacklevel=5,  # the caller of the state's method
    )


def _from_save(folder: Path, place: Place) -> Source | None:
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    state: dict[str, Any] = {"version": FORMAT}
    written = manifest.by_place()
    paths = {each: folder / manifest.save / written[each].name for each in written}
    found = [each for each in paths if paths[each].exists()]
    then = next(iter(written))
    wanted = set(place.sources(then.size, then.shards)) & set(found)
    # Where there is nothing to take: any file, for what is equal in all of them.
    for each in sorted(wanted) or found[:1]:
        state |= read_written(paths[each], written[each], manifest.save)
    also = folder / manifest.save / manifest.also.name
    return Source(
        state,
        read_written(also, manifest.also, manifest.save),
        manifest.save,
        {each: str(path) for each, path in paths.items()},
        {each: written[each].norms for each in written},
    )


def _from_files(paths: Sequence[Path], *, skip: bool) -> Source:
    state: dict[str, Any] = {}
    names: dict[Place, str] = {}
    before: Path | None = None
    for path in paths:
        if not path.exists():
            if skip:
                continue
            raise ConfigError(
                f"{path} is missing: give the files of all ranks, or load with "
                "missing='drop' to go on without what it held"
            )
        loaded = read_file(path)
        for key in ("version", "save"):
            if before is not None and loaded.get(key) != state.get(key):
                raise ConfigError(
                    f"a mixed set: {before} and {path} are of different saves"
                )
        for key in filter(Place.named, state.keys() & loaded.keys()):
            raise ConfigError(f"a mixed set: {before} and {path} both have {key}")
        state |= loaded
        before = path
        names |= {each: str(path) for each in map(Place.named, loaded) if each}
    return Source(state, save=str(state.get("save", "")), names=names)
