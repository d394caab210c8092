"""Gloo: messages through host memory, received early, with Gloo's threads kept back."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire import kernels
from thinwire.groups import gloo_scheduling
from thinwire.groups.early_receives import EarlyReceives
from thinwire.groups.group import Op
from thinwire.groups.max_reduce import max_reduce_
from thinwire.groups.transport import Transfers, Transport, without_empty

_TAG = 0
_PROBE_TAG = 0x7417  # no message has it: a probe never receives anything


class GlooTransport(Transport):
    """Transfers over Gloo; `pinned` where received bytes go on to a CUDA device.

    A sender that has not heard of a receive asks first, and its data wait for the
    reply: a message more, and two threads to be woken. `post_receives` avoids that.
    """

    def __init__(self, process_group: dist.ProcessGroup, *, pinned: bool) -> None:
        super().__init__(process_group, torch.device("cpu"))
        self.threads = gloo_scheduling.gloo_threads()
        self._pinned = pinned
        self._early = EarlyReceives[tuple[Tensor, dist.Work]]()
        self._probes: list[dist.Work] = []

    def leave_alone(self, threads: gloo_scheduling.Threads) -> None:
        """Do not keep back threads that belong to other process groups."""
        # These groups may end before this one, and their threads with them.
        self.threads = tuple(set(self.threads) - set(threads)) or self.threads

    def to_wire(self, tensor: Tensor) -> Tensor:
        return tensor.contiguous() if tensor.is_cpu else kernels.fetch(tensor)

    def buffer(self, nbytes: int) -> Tensor:
        # Nobody waits for a copy from pinned memory to a device.
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)

    def transfer(self, outgoing: Transfers, incoming: Transfers) -> None:
        self._send(outgoing, self._receive(incoming))

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        incoming = [(src, self.buffer(nbytes)) for src, nbytes in bodies if nbytes]
        for (src, buffer), work in zip(incoming, self._receive(incoming), strict=True):
            self._early.add(src, buffer.numel(), (buffer, work))

    def check_idle(self) -> None:
        self._early.check_empty()

    def all_reduce_(self, parts: Sequence[tuple[Tensor, Op]]) -> None:
        works = [self.start(each, op) for each, op in parts if op is not Op.MAX]
        max_reduce_(
            [tensor for tensor, op in parts if op is Op.MAX],
            self.process_group.rank(),
            self.process_group.size(),
            receive=self._receive,
            send=self._send,
        )
        self.wait(works)

    def wait(self, works: Sequence[dist.Work]) -> None:
        """Wait until the deadline, at most."""
        for work in works:
            left = max(self.deadline - time.monotonic(), 0.001)
            work.wait(timedelta(seconds=left))

    def probe(self) -> frozenset[int]:
        closed = set()
        for peer in set(range(self.process_group.size())) - {self.process_group.rank()}:
            try:
                probe = dist.irecv(
                    torch.empty(1, dtype=torch.uint8),
                    group_src=peer,
                    group=self.process_group,
                    tag=_PROBE_TAG,
                )
            except RuntimeError:
                closed.add(peer)
            else:
                self._probes += [probe] if probe is not None else []
        return frozenset(closed)

    def disconnect(self) -> None:
        for probe in self._probes[:1]:
            with suppress(RuntimeError):  # a receive that times out closes them
                probe.wait(timedelta(milliseconds=1))

    def _swap(
        self, outgoing: Transfers, expected: Sequence[tuple[int, int]]
    ) -> Transfers:
        incoming, works = [], []
        with gloo_scheduling.as_batch(self.threads):
            for src, nbytes in expected:
                early = self._early.take(src, nbytes) if nbytes else None
                if early is None:
                    buffer = self.buffer(nbytes)
                    works += self._start_receiving([(src, buffer)])
                else:
                    buffer, work = early
                    works.append(work)
                incoming.append((src, buffer))
            works += self._start_sending(outgoing)
        self.wait(works)
        return incoming

    def _receive(self, incoming: Transfers) -> list[dist.Work]:
        """Start to receive."""
        with gloo_scheduling.as_batch(self.threads):
            return self._start_receiving(incoming)

    def _send(self, outgoing: Transfers, under_way: Sequence[dist.Work]) -> None:
        """Send, and wait for that and for what is under way."""
        with gloo_scheduling.as_batch(self.threads):
            sent = self._start_sending(outgoing)
        self.wait([*under_way, *sent])

    # Without the wrappers of torch.distributed, which take longer than the sends.

    def _start_receiving(self, incoming: Transfers) -> list[dist.Work]:
        recv = self.process_group.recv
        return [recv([tensor], src, _TAG) for src, tensor in without_empty(incoming)]

    def _start_sending(self, outgoing: Transfers) -> list[dist.Work]:
        send = self.process_group.send
        return [send([tensor], dst, _TAG) for dst, tensor in without_empty(outgoing)]
