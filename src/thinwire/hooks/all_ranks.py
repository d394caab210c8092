"""AllRanks: the state of all ranks as one object, where a framework saves rank 0's.

Residuals differ from rank to rank. A framework that keeps the objects of rank 0 only
would lose the others', so rank 0's state dict has the entries of all ranks here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from thinwire.errors import AgreementError, GroupError, PeerError
from thinwire.groups import Group
from thinwire.hooks.place import Place
from thinwire.hooks.saving import together
from thinwire.hooks.units import Units

CALL = "all_ranks.state_dict"
# Bytes of one message, so that it does not take a timeout.
PIECE = 1 << 24


class AllRanks:
    """A `Stateful` with the state dicts of all ranks: `state.all_ranks`."""

    def __init__(
        self,
        collect: Callable[[], dict[str, Any]],
        load: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._collect, self._load = collect, load

    def state_dict(self) -> dict[str, Any]:
        """On rank 0 the entries of all ranks, on another one its own.

        All ranks call it together; every other rank sends its residual to rank 0, in
        whose main memory they all lie then.
        """
        return self._collect()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from rank 0's dict, given on every rank; of any number of ranks."""
        self._load(state_dict)


def collect(
    own: Callable[[], dict[str, Any]],
    units: Units,
    group: Group,
    device: torch.device,
) -> dict[str, Any]:
    """The entries of all ranks on rank 0, and this rank's `own` on another one."""
    key = Place(group.rank, group.size).key

    def describe() -> tuple[dict[str, Any], object]:
        saved = own()
        entries = {
            name: value
            for name, value in saved[key].items()
            if not isinstance(value, Mapping)
        }
        return saved, [entries, [[kind, each.numel()] for kind, each in _flat(units)]]

    try:
        saved, notes = together(group, device, describe, call=CALL)
        sizes = [sizes for _, sizes in notes]
        if any(other != sizes[0] for other in sizes):
            raise AgreementError(f"ranks hold vectors of different sizes: {sizes}")
        vectors = _to_rank_0(units, group)
    except GroupError as error:
        _explain(error)
    for rank, held in enumerate(vectors, 1):
        saved[Place(rank, group.size).key] = notes[rank][0] | held
    return saved


def _flat(units: Units) -> list[tuple[str, Tensor]]:
    """Every vector of the units, with its kind, in an order that all ranks have."""
    return [
        (kind, vector.whole())
        for state in units.existing_states
        for kind, vector in state.memory.saved.items()
    ]


def _to_rank_0(units: Units, group: Group) -> list[dict[str, dict[str, Tensor]]]:
    """On rank 0, copies of the other ranks' vectors by kind and parameter."""
    others = range(1, group.size if group.rank == 0 else 1)
    received: list[list[Tensor]] = [[] for _ in others]
    nothing = torch.empty(0, dtype=torch.uint8)
    for _, vector in _flat(units):
        flat = vector.view(torch.uint8)
        copies = [torch.empty(flat.numel(), dtype=torch.uint8) for _ in others]
        for start in range(0, flat.numel(), PIECE):
            piece = flat[start : start + PIECE]
            bodies, lengths = [nothing] * group.size, [0] * group.size
            for rank in others:
                lengths[rank] = piece.numel()
            if group.rank != 0:
                bodies[0] = piece
            found = group.all_to_all(bodies, nbytes=lengths)
            for rank, copy in zip(others, copies, strict=True):
                copy[start : start + piece.numel()] = found[rank]
        for copy, held in zip(copies, received, strict=True):
            held.append(copy.view(vector.dtype))
    return [_by_name(units, held) for held in received]


def _by_name(units: Units, flat: list[Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    vectors = iter(flat)
    for state in units.existing_states:
        for kind in state.memory.saved:
            views = state.layout.views(next(vectors))
            found.setdefault(kind, {}).update(views)
    return found


def _explain(error: GroupError) -> NoReturn:
    """Say what is likely to be wrong, besides what the group says."""
    message = (
        "state.all_ranks.state_dict() is for all ranks together: call it on every "
        "rank, not on rank 0 alone; only rank 0 need save what it returns. The ranks "
        f"did not meet: {error}"
    )
    if isinstance(error, PeerError):
        raise PeerError(message, error.ranks) from error
    raise GroupError(message) from error
