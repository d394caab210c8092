"""Files that a user has downloaded: found, unpacked, and checked against known sums.

Nothing is ever downloaded here. What is missing or broken is an error that says where
the files are to be had.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from thinwire.errors import ConfigError


@dataclass(frozen=True)
class Source:
    """Where a data set is to be had, and the known sums of its unpacked files.

    A sum is "sha256:..." or "md5:..."; files without one are taken as they are.
    """

    title: str
    home: str
    files: str  # what to fetch there, in words
    sums: Mapping[str, str] = field(default_factory=dict)

    @property
    def instructions(self) -> str:
        return f"get {self.files} from {self.home} and pass their folder as --data"

    def missing(self, path: Path, what: str) -> ConfigError:
        """An error that says what to get where."""
        return ConfigError(f"{what} in {path}: for {self.title}, {self.instructions}")

    def check(self, name: str, content: bytes) -> None:
        """Raise `ConfigError` if this is not the file of that name."""
        known = self.sums.get(name)
        if known is None:
            return
        kind, _, expected = known.partition(":")
        found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
        if found != expected:
            raise ConfigError(
                f"{name} is not the file of {self.title}: its {kind} is {found} "
                f"instead of {expected}. Fetch it again ({self.instructions}), or "
                "pass --unverified if other data is meant"
            )


@dataclass(frozen=True)
class Files:
    """The files of a data set, by name: of a folder, of those in it, or of an archive.

    Compressed files (.gz) go by their names without the ending.
    """

    path: Path
    source: Source
    verify: bool = True

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise self.source.missing(self.path.parent, f"there is no {self.path.name}")

    def find(self, *names: str) -> str | None:
        """The first of these names that there is."""
        return next((name for name in names if name in self._content), None)

    def read(self, name: str) -> bytes:
        """The unpacked content of a file, checked where its sum is known."""
        content = self._content.get(name)
        if content is None:
            raise self.source.missing(self.path, f"there is no {name}")
        if isinstance(content, Path):
            with _readable(content):
                content = _unpacked(content)
        if self.verify:
            self.source.check(name, content)
        return content

    @cached_property
    def _content(self) -> Mapping[str, Path | bytes]:
        """The files of a folder by their paths, those of an archive as they are."""
        if not self.path.is_file():
            folders = sorted(p for p in self.path.iterdir() if p.is_dir())
            # What wins comes last: the folder's own files, and unpacked ones.
            found = [
                path
                for folder in (*folders, self.path)
                for path in sorted(folder.iterdir(), reverse=True)
            ]
            return {_plain(p): p for p in found if p.is_file()}
        with _readable(self.path):
            if not tarfile.is_tarfile(self.path):
                return {_plain(self.path): self.path}
            if self.verify:
                self.source.check(self.path.name, self.path.read_bytes())
            return _members(self.path)


def archive_in(path: Path, *names: str) -> Path:
    """The path of an archive of one of these names in a folder, else the path."""
    return next((path / name for name in names if (path / name).is_file()), path)


def _plain(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def _members(archive: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                found[PurePosixPath(member.name).name] = stream.read()
    return found


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, tarfile.TarError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}. Fetch it again") from problem
