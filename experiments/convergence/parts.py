"""Checkpoints that are split into files: NAME.pt.000, NAME.pt.001 and so on.

For machines from which only a few files, none of them large, can be copied.
"""

import math
import shutil
from itertools import groupby
from pathlib import Path

MOST_FILES = 6  # of eight, next to the results and what all runs have said
LARGEST = 15 * 2**20
MOST_BYTES = 60 * 2**20

_PART = "*.pt.[0-9][0-9][0-9]"


def hand_over(checkpoints: list[Path], out: Path) -> list[Path]:
    """Copy what fits, whole checkpoints in parts, smallest first; what is left."""
    left, files, room = [], MOST_FILES, MOST_BYTES
    for path in sorted(checkpoints, key=lambda path: path.stat().st_size):
        size = path.stat().st_size
        parts = max(1, math.ceil(size / LARGEST))
        if parts > files or size > room:
            left.append(path)
            continue
        files, room = files - parts, room - size
        with path.open("rb") as whole:
            for number in range(parts):
                (out / f"{path.name}.{number:03}").write_bytes(whole.read(LARGEST))
    return left


def take_over(folder: Path, work: Path) -> list[Path]:
    """Join the parts in a folder and copy whole checkpoints, into another folder."""
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder} to resume from")
    taken = []
    for path in folder.glob("*.pt"):
        taken.append(work / path.name)
        shutil.copy(path, taken[-1])
    for name, held in groupby(sorted(folder.glob(_PART)), lambda path: path.stem):
        parts = list(held)
        _check_complete(name, parts)
        taken.append(work / name)
        with taken[-1].open("wb") as whole:
            for part in parts:
                whole.write(part.read_bytes())
    return taken


def _check_complete(name: str, parts: list[Path]) -> None:
    """Raise if a part is missing, except the last: loading then fails."""
    for number, part in enumerate(parts):
        if part.suffix != f".{number:03}":
            raise SystemExit(
                f"{name}.{number:03} is missing in {part.parent}: bring it, or remove "
                f"the other parts of {name} to start that run anew"
            )
