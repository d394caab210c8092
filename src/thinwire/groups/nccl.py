"""NCCL: messages between CUDA devices. Its calls do not block the host."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.groups.group import Group, Op
from thinwire.groups.transport import Transfers, Transport, without_empty


class NcclTransport(Transport):
    """Transfers over NCCL, in order of the device's stream.

    NCCL's watchdog finds a dead peer: waiting with a deadline would block the host.
    """

    def to_wire(self, tensor: Tensor) -> Tensor:
        return (tensor if tensor.is_cuda else tensor.to(self.wire)).contiguous()

    def swap(
        self, outgoing: Transfers, expected: Sequence[tuple[int, int]]
    ) -> Transfers:
        incoming = [
            (src, torch.empty(nbytes, dtype=torch.uint8, device=self.wire))
            for src, nbytes in expected
        ]
        # As one launch, which NCCL needs in order to do all at once.
        transfers = [
            dist.P2POp(call, tensor, group=self.process_group, group_peer=peer)
            for call, part in ((dist.irecv, incoming), (dist.isend, outgoing))
            for peer, tensor in without_empty(part)
        ]
        for work in dist.batch_isend_irecv(transfers) if transfers else ():
            work.wait()
        return incoming

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Nothing: receives of NCCL are launched with their sends."""

    def all_reduce_(self, parts: Sequence[tuple[Tensor, Op]]) -> None:
        """Sums and maxima alone: NCCL has no bitwise OR."""
        works = [self.start(tensor, op) for tensor, op in parts if op is not Op.OR]
        for work in works:
            work.wait()


def or_reduce_(tensor: Tensor, group: Group) -> None:
    """Bitwise OR where the backend has none: each rank combines one chunk."""
    flat = tensor.view(-1).view(torch.uint8)
    chunk = -(-flat.numel() // group.size)
    padded = flat.new_zeros(chunk * group.size)
    padded[: flat.numel()] = flat
    lengths = [chunk] * group.size
    pieces = group.all_to_all(torch.split(padded, chunk), nbytes=lengths)
    own = pieces[0]
    for piece in pieces[1:]:
        own.bitwise_or_(piece)
    whole = torch.cat(group.all_gather(own, nbytes=lengths))
    flat.copy_(whole[: flat.numel()])
