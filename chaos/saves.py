"""Saves: one file for each rank, complete when there are as many as ranks."""

import io
from pathlib import Path
from typing import Any

import torch


def write(folder: Path, step: int, rank: int, held: Any, *, cut: bool = False) -> None:
    """Write a rank's file under another name, then rename it; `cut`: die half-way."""
    folder = folder / f"save{step}"
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(held, buffer)
    octets = buffer.getvalue()
    fresh = folder / f"rank{rank}.new"
    fresh.write_bytes(octets[: len(octets) // 2] if cut else octets)
    if not cut:
        fresh.replace(folder / f"rank{rank}.pt")


def last_complete(folder: Path, ranks: int) -> Path | None:
    """The newest save that all ranks have finished, if there is one."""
    found = {int(each.name.removeprefix("save")): each for each in folder.glob("save*")}
    for step in sorted(found, reverse=True):
        if len(list(found[step].glob("rank*.pt"))) == ranks:
            return found[step]
    return None


def read(save: Path, rank: int) -> Any:
    """What a rank wrote."""
    return torch.load(save / f"rank{rank}.pt")
