"""Files of a save: all of them are there, or none is used.

    folder/thinwire.json                 what the last complete save consists of
    folder/save-<passes>-<id>/           a save
        rank-0-of-4.pt ...               the state dict of each rank
        also.pt                          what the caller adds, the same for all ranks

Every file is written under another name, brought to the disk and renamed. When all
ranks have done that, rank 0 replaces `thinwire.json` in the same way, and then removes
older saves. So a save that is cut, wherever, leaves the last one in force.
"""

import io
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

from thinwire.errors import AgreementError, ConfigError, GroupError
from thinwire.groups import Group
from thinwire.hooks import agreement
from thinwire.hooks.place import Place
from thinwire.saved_values import integer, mapping, number, parsed, shown, text

MANIFEST = "thinwire.json"
_FORMAT = 1
_SAVE = re.compile(r"save-\d+-[0-9a-f]{8}")
_ALSO = "also.pt"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """A file of a save, and the norms of the vectors in it, by kind."""

    name: str
    nbytes: int
    crc32: int
    norms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The last complete save of a folder: its files by rank, and what was added.

    Files are those of all ranks of all shards, by `Place.index`.
    """

    save: str
    files: Sequence[Written]
    also: Written
    shards: int = 1

    def by_place(self) -> dict[Place, Written]:
        """The files, by the places of those that wrote them."""
        ranks = range(len(self.files) // self.shards)
        places = [
            Place(rank, len(ranks), shard, self.shards)
            for rank in ranks
            for shard in range(self.shards)
        ]
        return dict(zip(places, self.files, strict=True))


def together(
    group: Group,
    device: torch.device,
    action: Callable[[], tuple[T, object]],
    *,
    call: str,
) -> tuple[T, list[Any]]:
    """Run an action on every rank; raise on all of them if it fails on one.

    The action returns a value for this rank, and one for all, which JSON can hold.
    """
    problem: Exception | None = None
    value = note = None
    try:
        value, note = action()
    except Exception as error:  # of any kind: the others must not wait
        problem = error
    said = None if problem is None else f"{type(problem).__name__}: {problem}"
    try:
        mine = {"problem": said, "note": note}
        notes = agreement.gather_json(group, mine, device, call=call)
    except GroupError:
        if problem is not None:
            raise problem from None
        raise
    if problem is not None:
        raise problem
    for rank, other in enumerate(notes):
        if other["problem"] is not None:
            raise ConfigError(f"refused on rank {rank}: {other['problem']}")
    return value, [other["note"] for other in notes]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Save:
    """A save by all ranks together into a folder that is the same one for all."""

    path: str | os.PathLike[str]
    group: Group
    device: torch.device
    place: Place

    def run(
        self,
        state: Mapping[str, Any],
        norms: Mapping[str, float],
        also: Mapping[str, Any],
    ) -> None:
        """Save a state dict of each rank, and what rank 0 adds."""
        passes = state[self.place.key]["passes"]
        _, begun = self._together(lambda: self._begin(passes))
        name = str(begun[0][0])
        if any(other != passes for _, other in begun):
            raise AgreementError(f"ranks save after {[n for _, n in begun]} passes")
        try:
            _, written = self._together(lambda: self._write(name, state, norms, also))
        except GroupError:
            raise  # others may still be writing; the next save removes it
        except Exception:
            if self.group.rank == 0:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            raise
        files = [_written(mine) for mine, _ in written]
        added = _written(written[0][1])
        manifest = Manifest(name, files, added, self.place.shards)
        self._together(lambda: self._finish(manifest))

    @property
    def folder(self) -> Path:
        """The path as a `Path`; raises if it is none."""
        return Path(self.path)

    def _together(self, action: Callable[[], tuple[object, object]]) -> Any:
        return together(self.group, self.device, action, call="save")

    def _begin(self, passes: int) -> tuple[None, object]:
        folder = self.folder / f"save-{passes}-{uuid.uuid4().hex[:8]}"
        if self.group.rank == 0:
            folder.mkdir(parents=True)
        return None, (folder.name, passes)

    def _finish(self, manifest: Manifest) -> tuple[None, object]:
        if self.group.rank == 0:
            _complete(self.folder, manifest)
        return None, None

    def _write(
        self,
        name: str,
        state: Mapping[str, Any],
        norms: Mapping[str, float],
        also: Mapping[str, Any],
    ) -> tuple[None, object]:
        folder, rank = self.folder / name, self.group.rank
        if not folder.is_dir():
            raise ConfigError(
                f"{self.folder} is not the folder that rank 0 writes to: give one that "
                "all ranks share, or save state.state_dict() in a file for each rank"
            )
        if not all(map(isfinite, norms.values())):
            raise ConfigError(
                f"what rank {rank} has not delivered has elements that are NaN or "
                "infinite, and could not be loaded: go back to the last save, and "
                "leave out on_nonfinite='unchecked'"
            )
        path = folder / _rank_file(rank, self.group.size)
        mine = _write(path, {**state, "save": name}, norms)
        added = asdict(_write_also(folder / _ALSO, also)) if rank == 0 else None
        return None, (asdict(mine), added)


def read_manifest(folder: Path) -> Manifest | None:
    """The last complete save; None if there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        saved = dict(mapping(parsed(path.read_text(), MANIFEST), MANIFEST))
        if saved.pop("crc32", None) != _checksum(saved):
            raise ConfigError("its checksum is wrong")
        integer(saved.get("version"), "version", _FORMAT, _FORMAT)
        save = text(saved["save"], "save")
        files = [_written(each) for each in saved["files"]]
        also = _written(saved["also"])
        # Names of files and of their folder, never paths to elsewhere.
        names = [_rank_file(rank, len(files)) for rank in range(len(files))]
        if [each.name for each in (*files, also)] != [*names, _ALSO]:
            raise ConfigError("it names files that no save has")
        if not _SAVE.fullmatch(save):
            raise ConfigError(f"it names a save {shown(save)}")
        shards = integer(saved.get("shards", 1), "shards", 1, len(files))
        if len(files) % shards:
            raise ConfigError(f"it names {len(files)} files of {shards} shards")
        return Manifest(save, files, also, shards)
    except (ConfigError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error!r}") from error


def read_written(path: Path, written: Written, save: str) -> dict[str, Any]:
    """A file of a save, if it is the one that was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(data) != written.nbytes or zlib.crc32(data) != written.crc32:
        raise ConfigError(
            f"{path} is not the file of {save}: it has {len(data)} bytes, "
            f"{written.nbytes} were written, or other contents. Load another save, or "
            "delete this file and load with missing='drop'"
        )
    return _loaded(path, io.BytesIO(data))


def read_file(path: Path) -> dict[str, Any]:
    """The state dict in a file, on the CPU, read when it is used."""
    return _loaded(path, path, mmap=True)


def _loaded(
    path: Path, source: Path | io.BytesIO, *, mmap: bool = False
) -> dict[str, Any]:
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch has one for each way to be damaged
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return dict(mapping(loaded, str(path)))


def _rank_file(rank: int, size: int) -> str:
    return f"rank-{rank}-of-{size}.pt"


def _written(value: object) -> Written:
    saved = mapping(value, "file")
    norms = mapping(saved["norms"], "norms")
    return Written(
        text(saved["name"], "name"),
        integer(saved["nbytes"], "nbytes"),
        integer(saved["crc32"], "crc32"),
        {kind: number(norm, "norms") for kind, norm in norms.items()},
    )


def _write_also(path: Path, also: Mapping[str, Any]) -> Written:
    """Write what the caller adds; refuses what could not be read back."""
    try:
        written = _write(path, dict(also), {})
        read_file(path)
    except OSError:
        raise
    except Exception as error:  # torch and pickle have several for this
        raise ConfigError(
            "also must have tensors, plain values, and lists and dicts of them, so "
            f"that it can be loaded: {error}"
        ) from error
    return written


def _complete(folder: Path, manifest: Manifest) -> None:
    """Put a save into force, whose files all ranks have written; remove older ones."""
    held = {"version": _FORMAT, **asdict(manifest)}
    body = json.dumps({**held, "crc32": _checksum(held)}, indent=1)
    _replace(folder / MANIFEST, lambda file: file.write(body.encode()))
    for each in folder.iterdir():
        if _SAVE.fullmatch(each.name) and each.name != manifest.save:
            shutil.rmtree(each, ignore_errors=True)


def _checksum(held: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(held, sort_keys=True).encode())


def _write(path: Path, value: object, norms: Mapping[str, float]) -> Written:
    counted = _replace(path, lambda file: torch.save(value, file))
    return Written(path.name, counted.nbytes, counted.crc32, norms)


class _Counted:
    """A file that is written from start to end; counts, and computes a checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.nbytes, self.crc32 = file, 0, 0

    def write(self, data: bytes) -> int:
        self.nbytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _replace(path: Path, write: Callable[[Any], object]) -> _Counted:
    """Replace a file at once: readers see the old one or all of the new one."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        counted = _Counted(file)
        write(counted)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)
    return counted
