"""Transport: messages of one process group over one backend of torch.distributed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups.group import Op

Transfers = list[tuple[int, Tensor]]
"""Tensors, each with the rank that it goes to or comes from."""

_LARGEST_NBYTES = 1 << 34  # a longer body is a garbled length, not a message
_REDUCE = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.MAX: dist.ReduceOp.MAX,
    Op.OR: dist.ReduceOp.BOR,
}


class Transport(ABC):
    """Transfers between the ranks of a process group, as `TorchGroup` needs them.

    Tensors lie on `wire`, the device that the backend works on. `deadline`, by
    `time.monotonic`, is set before every call. Errors are those of torch.distributed.
    """

    def __init__(self, process_group: dist.ProcessGroup, wire: torch.device) -> None:
        self.process_group = process_group
        self.wire = wire
        self.deadline = 0.0

    @abstractmethod
    def to_wire(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous, on `wire`: itself if it is."""

    @abstractmethod
    def transfer(self, outgoing: Transfers, incoming: Transfers) -> None:
        """Send and receive all of these at once; empty ones do not travel."""

    @abstractmethod
    def all_reduce_(self, parts: Sequence[tuple[Tensor, Op]]) -> None:
        """Combine each tensor over all ranks, in place."""

    @abstractmethod
    def probe(self) -> frozenset[int]:
        """After a failure: the peers whose connections are known to be closed."""

    @abstractmethod
    def disconnect(self) -> None:
        """After `probe`: close all connections, so that peers that wait here stop."""

    @abstractmethod
    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Start to receive, if that saves anything."""

    @abstractmethod
    def check_idle(self) -> None:
        """Refuse a call while posted receives are under way."""

    def swap(
        self,
        outgoing: Transfers,
        sources: Sequence[int],
        lengths: Sequence[int] | None,
    ) -> Transfers:
        """Send, and receive a body from every source.

        `lengths` are those of what comes in; None: they travel first.
        """
        if lengths is None:
            lengths = self._swap_lengths(outgoing, sources)
        return self._swap(outgoing, list(zip(sources, lengths, strict=True)))

    def start(self, tensor: Tensor, op: Op) -> dist.Work:
        """Start the library's all-reduce."""
        # Gloo knows few integer types, and bits are the same in all of them.
        tensor = tensor.view(-1).view(torch.uint8) if op is Op.OR else tensor
        work: dist.Work = dist.all_reduce(
            tensor, op=_REDUCE[op], group=self.process_group, async_op=True
        )
        return work

    def buffer(self, nbytes: int) -> Tensor:
        """Memory to receive into."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.wire)

    def _swap(
        self, outgoing: Transfers, expected: Sequence[tuple[int, int]]
    ) -> Transfers:
        incoming = [(src, self.buffer(nbytes)) for src, nbytes in expected]
        self.transfer(outgoing, incoming)
        return incoming

    def _swap_lengths(
        self, outgoing: Transfers, sources: Sequence[int]
    ) -> Sequence[int]:
        ours = [
            (dst, torch.tensor([body.numel()], device=self.wire))
            for dst, body in outgoing
        ]
        theirs = [
            (src, torch.empty(1, dtype=torch.int64, device=self.wire))
            for src in sources
        ]
        self.transfer(ours, theirs)
        lengths = [int(length) for _, length in theirs]
        for src, length in zip(sources, lengths, strict=True):
            if not 0 <= length <= _LARGEST_NBYTES:
                raise GroupError(f"rank {src} announces a body of {length} bytes")
        return lengths


def without_empty(transfers: Transfers) -> Transfers:
    """The transfers that carry at least a byte."""
    return [(peer, tensor) for peer, tensor in transfers if tensor.numel()]
