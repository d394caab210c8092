"""Ranks compare notes before they start, and replicas whenever the user asks.

Notes travel as JSON: plain values, nothing is executed to read them.
"""

import json
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.errors import AgreementError, ConfigError, ReplicaError, WireError
from thinwire.groups import Group

Note = Mapping[str, object]

_SHOWN = 5


def gather_notes(group: Group, note: Note, device: torch.device) -> list[Note]:
    """Every rank's note, in order of rank."""
    text = json.dumps(note).encode()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    notes = []
    for rank, received in enumerate(group.all_gather(body, nbytes=None)):
        try:
            notes.append(json.loads(received.cpu().numpy().tobytes()))
        except ValueError as error:
            raise WireError(f"rank {rank} sent a note that is not JSON") from error
    return notes


def compare_settings(
    group: Group, note: Note, problem: ConfigError | None, device: torch.device
) -> None:
    """Raise on every rank alike if one has a problem or settings of its own.

    Settings named "...@part" are compared among the ranks that have them.
    """
    notes = gather_notes(
        group, {**note, "problem": None if problem is None else str(problem)}, device
    )
    if problem is not None:
        raise problem
    for rank, other in enumerate(notes):
        if other["problem"] is not None:
            raise AgreementError(f"rank {rank} cannot start: {other['problem']}")
    differences = [
        f"{key}: {_by_rank([other.get(key) for other in notes])}"
        for key in {key: None for other in notes for key in other}
        if _differ(notes, key)
    ]
    if differences:
        more = len(differences) - _SHOWN
        raise AgreementError(
            "ranks are set up differently; make these alike on every rank. "
            + "; ".join(differences[:_SHOWN])
            + (f"; and {more} more" if more > 0 else "")
        )


def _differ(notes: Sequence[Note], key: str) -> bool:
    held = [note for note in notes if key in note] if "@" in key else notes
    return any(note.get(key) != held[0].get(key) for note in held)


def compare_replicas(
    group: Group, parameters: Mapping[str, Tensor], device: torch.device
) -> None:
    """Raise on every rank alike if a parameter's bits differ between ranks."""
    notes = gather_notes(
        group, {name: _checksum(p) for name, p in parameters.items()}, device
    )
    astray = {}
    for name in parameters:
        sums = [note.get(name) for note in notes]
        if any(each != sums[0] for each in sums):
            astray[name] = [r for r, each in enumerate(sums) if each != sums[0]]
    if astray:
        name, ranks = next(iter(astray.items()))
        raise ReplicaError(
            f"{len(astray)} of {len(parameters)} parameters differ between replicas; "
            f"the first is {name!r}, where ranks {ranks} differ from rank 0. Reload "
            "every rank from one checkpoint"
        )


def _checksum(parameter: Tensor) -> int:
    flat = parameter.detach().cpu().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def _by_rank(values: list[object]) -> str:
    """Each distinct value once, with the ranks that hold it."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(json.dumps(value), []).append(rank)
    return ", ".join(
        f"{_shortened(value)} on ranks {ranks}" for value, ranks in holders.items()
    )


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
