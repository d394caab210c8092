"""Comparing settings and replicas between ranks, and telling others of an error.

Everything travels as JSON: plain values, which are read without executing anything.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import (
    AgreementError,
    ConfigError,
    ReplicaError,
    ThinwireError,
    WireError,
)
from thinwire.groups import Group

Settings = Mapping[str, object]

ATTACH = "attach"
_SHOWN = 5


def gather_json(
    group: Group, value: object, device: torch.device, *, call: str
) -> list[Any]:
    """The value of every rank, in order of rank.

    Raises on every rank if one is in another `call`, such as a load on rank 0 alone.
    """
    text = json.dumps({"call": call, "value": value}).encode()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    values: list[Any] = []
    for rank, received in enumerate(group.all_gather(body, nbytes=None)):
        try:
            values.append(json.loads(received.cpu().numpy().tobytes()))
        except ValueError as error:
            raise WireError(f"rank {rank} sent settings that are not JSON") from error
        if not isinstance(values[-1], dict):
            raise WireError(f"rank {rank} sent settings without the name of a call")
    calls = [each.get("call") for each in values]
    if any(other != calls[0] for other in calls):
        raise AgreementError(
            f"ranks are in different calls, {_by_rank(calls)}: make each of these on "
            "all ranks together, not on one alone. Nothing has changed"
        )
    return [each.get("value") for each in values]


def compare_settings(
    group: Group,
    settings: Settings,
    device: torch.device,
    *,
    partial: Settings | None = None,
    call: str = ATTACH,
) -> None:
    """Raise on every rank if one rank has an error to tell, or other settings.

    All ranks have the same names in `settings`. Those in `partial` are compared among
    the ranks that have them.
    """
    sent = {"common": settings, "partial": partial or {}}
    received = gather_json(group, sent, device, call=call)
    for rank, other in enumerate(received):
        if "error" in other:
            raise AgreementError(f"rank {rank} cannot start: {other['error']}")
    differences = [
        *_differences([each["common"] for each in received], absent_counts=True),
        *_differences([each["partial"] for each in received], absent_counts=False),
    ]
    if differences:
        more = len(differences) - _SHOWN
        raise AgreementError(
            "ranks are set up differently; make these equal on every rank. "
            + "; ".join(differences[:_SHOWN])
            + (f"; and {more} more" if more > 0 else "")
        )


@contextmanager
def told(find: Callable[[], tuple[Group, torch.device] | None]) -> Iterator[None]:
    """Tell the other ranks of an exception in the body, instead of the settings.

    They raise it from the `compare_settings` that follows the body on their side. The
    group is found only then; None if there is nobody to tell.
    """
    try:
        yield
    except Exception as problem:
        name = "" if isinstance(problem, ConfigError) else f"{type(problem).__name__}: "
        # If the others are gone, what is wrong here is still what must be raised.
        with suppress(ThinwireError, RuntimeError):
            meeting = find()
            if meeting is not None:
                note = {"error": f"{name}{problem}"}
                gather_json(meeting[0], note, meeting[1], call=ATTACH)
        raise


def _differences(notes: Sequence[Settings], *, absent_counts: bool) -> list[str]:
    """The names whose values differ, with their values."""
    found = []
    for key in dict.fromkeys(key for note in notes for key in note):
        held = [note.get(key) for note in notes if absent_counts or key in note]
        if any(value != held[0] for value in held):
            found.append(f"{key}: {_by_rank([note.get(key) for note in notes])}")
    return found


def compare_replicas(
    group: Group,
    parameters: Mapping[str, Tensor],
    device: torch.device,
    *,
    shards: int = 1,
) -> None:
    """Raise on every rank if a parameter's bits differ between ranks.

    Where there are several `shards`, every `shards`-th rank has the same one.
    """
    sums = {name: _checksum(parameter) for name, parameter in parameters.items()}
    received = gather_json(group, sums, device, call="check_replicas")
    different = {}
    for name in parameters:
        held = [each.get(name) for each in received]
        ranks = [r for r, each in enumerate(held) if each != held[r % shards]]
        if ranks:
            different[name] = ranks
    if different:
        name, ranks = next(iter(different.items()))
        raise ReplicaError(
            f"{len(different)} of {len(parameters)} parameters differ between "
            f"replicas; the first is {name!r}, where ranks {ranks} differ from rank "
            f"{ranks[0] % shards}. Reload every rank from one checkpoint"
        )


def _checksum(parameter: Tensor) -> int:
    flat = parameter.detach().cpu().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def _by_rank(values: Sequence[object]) -> str:
    """Each distinct value once, with the ranks that hold it."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(json.dumps(value), []).append(rank)
    return ", ".join(
        f"{_shortened(value)} on ranks {ranks}" for value, ranks in holders.items()
    )


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
