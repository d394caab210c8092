"""Transport: messages of one process group over one backend of torch.distributed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.groups.group import Op
from thinwire.groups.reports import Report

Transfers = list[tuple[int, Tensor]]
"""Tensors, each with the rank that it goes to or comes from."""

_REDUCE = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.MAX: dist.ReduceOp.MAX,
    Op.OR: dist.ReduceOp.BOR,
}


class Transport(ABC):
    """What `TorchGroup` needs of a backend. Errors are those of torch.distributed.

    `wire` is the device that the backend works on, and `deadline`, by
    `time.monotonic`, is set before every call.
    """

    def __init__(self, process_group: dist.ProcessGroup, wire: torch.device) -> None:
        self.process_group = process_group
        self.wire = wire
        self.deadline = 0.0

    @abstractmethod
    def to_wire(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous, on `wire`: itself if it is."""

    @abstractmethod
    def swap(
        self, outgoing: Transfers, expected: Sequence[tuple[int, int]]
    ) -> Transfers:
        """Send, and receive (rank, nbytes), all at once; empty ones do not travel."""

    @abstractmethod
    def all_reduce_(self, parts: Sequence[tuple[Tensor, Op]]) -> None:
        """Combine each tensor over all ranks, in place."""

    def start(self, tensor: Tensor, op: Op) -> dist.Work:
        """Start the library's all-reduce."""
        # Gloo knows few integer types, and bits are the same in all of them.
        tensor = tensor.view(-1).view(torch.uint8) if op is Op.OR else tensor
        work: dist.Work = dist.all_reduce(
            tensor, op=_REDUCE[op], group=self.process_group, async_op=True
        )
        return work

    @abstractmethod
    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Start to receive (rank, nbytes), if the backend gains from it."""

    def check_idle(self) -> None:  # noqa: B027 (none is posted)
        """Refuse a call while posted receives are under way."""

    def refuse_receives(self) -> None:  # noqa: B027 (none is posted)
        """Give up all posted receives, as every rank does."""

    def report(self) -> Report:
        """After a failure: what was under way."""
        return Report()

    def closed_peers(self) -> frozenset[int]:
        """After a failure: the peers whose connections are known to be closed."""
        return frozenset()

    def disconnect(self) -> None:
        """After a failure: close all connections, so that waiting peers raise."""
        self.process_group.abort()

    def close(self) -> None:
        """Let go of the process group, which has ended, and of receives on it."""
        del self.process_group


def without_empty(transfers: Transfers) -> Transfers:
    """The transfers that carry at least a byte."""
    return [(peer, tensor) for peer, tensor in transfers if tensor.numel()]
