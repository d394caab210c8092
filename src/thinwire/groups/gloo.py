"""Gloo: messages through host memory, with receives that are posted early."""

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
from thinwire.groups.reports import Report, Traced
from thinwire.groups.transport import Transfers, Transport, without_empty

_PROBE_TAG = 2**31 - 1  # no message has it: a probe never receives anything
_REFUSAL = 0x61C88647  # keeps the tags after a refusal apart from those before it


class GlooTransport(Transport):
    """Transfers over Gloo; `pinned` where received bytes go on to a CUDA device.

    If a receive is not posted, its sender first exchanges messages with the receiver,
    which also wakes two threads. `post_receives` avoids that.

    The tag of a message is its length. Gloo aborts the process of a receiver whose
    buffer is too short, and does not tell a receiver that a message was shorter. With
    tags, a message of another length than expected matches no receive, and both calls
    fail at their deadline. After a refused reduction all tags are other ones, so that
    receives which were posted for it match nothing.
    """

    def __init__(self, process_group: dist.ProcessGroup, *, pinned: bool) -> None:
        super().__init__(process_group, torch.device("cpu"))
        self.threads = gloo_scheduling.gloo_threads()
        self._pinned = pinned
        self._early = EarlyReceives[tuple[Tensor, dist.Work]]()
        # Gloo has their addresses for as long as the process group lives.
        self._refused: list[EarlyReceives[tuple[Tensor, dist.Work]]] = []
        self._sent, self._received = Traced(), Traced()
        self._probes: list[dist.Work] = []

    def leave_alone(self, threads: gloo_scheduling.Threads) -> None:
        """Do not schedule these threads, which belong to other process groups."""
        # Those groups may end before this one, and their threads with them.
        self.threads = tuple(set(self.threads) - set(threads)) or self.threads

    def to_wire(self, tensor: Tensor) -> Tensor:
        return tensor.contiguous() if tensor.is_cpu else kernels.fetch(tensor)

    def swap(
        self, outgoing: Transfers, expected: Sequence[tuple[int, int]]
    ) -> Transfers:
        # Without the wrappers of torch.distributed, which take longer than the sends.
        incoming, works = [], []
        outgoing = without_empty(outgoing)
        self._sent.start([(dst, tensor.numel()) for dst, tensor in outgoing])
        self._received.start([each for each in expected if each[1]])
        with gloo_scheduling.as_batch(self.threads):
            for src, nbytes in expected:
                buffer = self._buffer(0)
                if nbytes:
                    early = self._early.take(src, nbytes)
                    buffer, work = early or self._receive(src, nbytes)
                    works.append(work)
                incoming.append((src, buffer))
            for dst, tensor in outgoing:
                tag = self._tag(tensor.numel())
                works.append(self.process_group.send([tensor], dst, tag))
        self.wait(works)
        self._sent.finish()
        self._received.finish()
        return incoming

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        with gloo_scheduling.as_batch(self.threads):
            for src, nbytes in bodies:
                if nbytes:
                    self._early.add(src, nbytes, self._receive(src, nbytes))

    def check_idle(self) -> None:
        self._early.check_empty()

    def refuse_receives(self) -> None:
        self._refused.append(self._early)
        self._early = EarlyReceives()
        self._sent, self._received = Traced(), Traced()

    def report(self) -> Report:
        refused = len(self._refused)
        return Report(refused, self._sent.entries(), self._received.entries())

    def all_reduce_(self, parts: Sequence[tuple[Tensor, Op]]) -> None:
        works = [self.start(each, op) for each, op in parts if op is not Op.MAX]
        max_reduce_([tensor for tensor, op in parts if op is Op.MAX], self)
        self.wait(works)

    def wait(self, works: Sequence[dist.Work]) -> None:
        """Wait until the deadline, at most."""
        for work in works:
            left = max(self.deadline - time.monotonic(), 0.001)
            work.wait(timedelta(seconds=left))

    def closed_peers(self) -> frozenset[int]:
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

    def close(self) -> None:
        super().close()
        self._early = EarlyReceives()
        self._refused, self._probes = [], []

    def _buffer(self, nbytes: int) -> Tensor:
        # Only pinned memory is copied to a device asynchronously.
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)

    def _receive(self, src: int, nbytes: int) -> tuple[Tensor, dist.Work]:
        buffer = self._buffer(nbytes)
        return buffer, self.process_group.recv([buffer], src, self._tag(nbytes))

    def _tag(self, nbytes: int) -> int:
        return (nbytes + _REFUSAL * len(self._refused)) % _PROBE_TAG
