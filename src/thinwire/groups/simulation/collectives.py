"""Collectives of simulated ranks: completed when every rank has called one.

Each rank brings a call with a private copy of what it sends. `complete` checks that
the calls fit together, moves the clocks, and returns one outcome per rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups.checks import LENGTH_NBYTES
from thinwire.groups.group import Op
from thinwire.groups.max_reduce import canonicalize_
from thinwire.groups.simulation.clock import Clocks

Lengths = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AllToAll:
    """One rank's bodies, one for each rank."""

    name: ClassVar[str] = "all_to_all"
    bodies: tuple[Tensor, ...]
    nbytes: Lengths

    @staticmethod
    def complete(calls: "Sequence[AllToAll]", clocks: Clocks) -> Sequence[list[Tensor]]:
        sizes = np.array([[body.numel() for body in call.bodies] for call in calls])
        _move([call.nbytes for call in calls], sizes, clocks)
        return [[call.bodies[dst] for call in calls] for dst in range(len(calls))]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One rank's tensors, combined in place."""

    name: ClassVar[str] = "all_reduce_"
    parts: tuple[tuple[Tensor, Op], ...]

    @staticmethod
    def complete(
        calls: "Sequence[AllReduce]", clocks: Clocks
    ) -> Sequence[list[Tensor]]:
        for rank, call in enumerate(calls):
            if call.describe() != calls[0].describe():
                raise GroupError(
                    f"rank 0 reduces {calls[0].describe()}, "
                    f"rank {rank} reduces {call.describe()}"
                )
        for column in zip(*(call.parts for call in calls), strict=True):
            _combine_([tensor for tensor, _ in column], column[0][1])
        # A ring moves each part in P chunks; parts started together share the rounds.
        parts = calls[0].parts
        clocks.all_reduce(
            sum(-(-t.nbytes // len(calls)) for t, op in parts if op is not Op.MAX),
            sum(t.nbytes for t, op in parts if op is Op.MAX),
        )
        return [[] for _ in calls]

    def describe(self) -> str:
        """What must be the same on all ranks."""
        parts = (f"{op.value} of {t.numel()} {t.dtype}" for t, op in self.parts)
        return ", ".join(parts) or "nothing"


def _move(
    announced: Sequence[Lengths], sizes: NDArray[np.int64], clocks: Clocks
) -> None:
    for rank, lengths in enumerate(announced):
        if (lengths is None) != (announced[0] is None):
            raise GroupError(
                f"rank 0 announces lengths {announced[0]}, rank {rank} {lengths}: "
                "either all ranks know the lengths or none does"
            )
        if lengths is not None:
            _check_expected(rank, lengths, sizes[:, rank])
    if announced[0] is None:
        clocks.direct(np.full_like(sizes, LENGTH_NBYTES))
    clocks.direct(sizes)


def _check_expected(
    rank: int, lengths: Sequence[int], actual: NDArray[np.int64]
) -> None:
    for src in np.flatnonzero(np.asarray(lengths) != actual).tolist():
        raise GroupError(
            f"rank {rank} expects {lengths[src]} bytes from rank {src}, "
            f"which sends {actual[src]}"
        )


def _combine_(tensors: Sequence[Tensor], op: Op) -> None:
    """Combine in order of rank, in the tensors' own dtype, and give all the result."""
    total = tensors[0]
    for tensor in tensors[1:]:
        if op is Op.SUM:
            total.add_(tensor)
        elif op is Op.MAX:
            torch.maximum(total, tensor, out=total)
        else:
            total.bitwise_or_(tensor)
    if op is Op.MAX and len(tensors) > 1:
        canonicalize_(total)
    for tensor in tensors[1:]:
        tensor.copy_(total)
