"""TorchGroup: ranks of torch.distributed, over Gloo or NCCL.

Gathers and all-to-alls send each body straight to each peer, all at once, so that
lengths may differ (Gloo's own operations refuse that). All-reduces are the library's;
on Gloo a maximum takes fewer messages by dissemination (`max_reduce.py`).

On Gloo a dead or stuck peer makes every other rank raise a `PeerError` that names it,
about a timeout after the failure at the latest. A rank whose call fails reports itself
in the store and closes all its connections, so the calls of other ranks fail and they
do the same. The ranks that have not reported are dead or stuck (`failure_probe.py`). On
torch 2.13 `abort()` does not end a receive that waits; a receive that times out closes
every connection of its process group; a receive from a dead peer raises at once.

On NCCL calls do not block the host, so a lost peer is found by its watchdog.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import (
    _get_default_group,
    _get_default_store,
)

from thinwire.errors import ConfigError, GroupError, PeerError
from thinwire.groups import checks, gloo_scheduling, own_groups
from thinwire.groups.failure_probe import Failure, FailureProbe, diagnose
from thinwire.groups.gloo import GlooTransport
from thinwire.groups.group import Group, Op
from thinwire.groups.nccl import NcclTransport, or_reduce_
from thinwire.groups.shared_memory import SharedMemoryGroup
from thinwire.groups.transport import Transfers, Transport

_LARGEST_NBYTES = 1 << 34  # a longer body is a garbled length, not a message


class TorchGroup(Group):
    """The ranks of a process group, which stays its owner's; None is the default one.

    `timeout` is how many seconds a call may take before its peers count as stuck; the
    process group's own where None. Bytes travel on `device` (where an exchange brings
    no body, they also arrive there); None is the CPU if the backend can, else CUDA.
    CUDA tensors cross a Gloo group through pinned memory.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        group = process_group or _get_default_group()
        backends = _backends(group)
        default = "cpu" if "cpu" in backends else "cuda"
        self._device = torch.device(device if device is not None else default)
        self._rank, self._size = group.rank(), group.size()
        self._failure: str | None = None
        self._on_failure: list[Callable[[str], object]] = []
        # What errors call the ranks.
        self.names: Sequence[int] = range(self._size)
        # Ends the process group, where that is this object's.
        self._own: Callable[[], object] | None = None
        self._transport: Transport
        if backends.get(self._device.type) == "nccl":
            self._transport = NcclTransport(group, self._device)
        else:
            self._transport = GlooTransport(group, pinned=self._device.type == "cuda")
        self.timeout = _timeout(group, self._transport.wire, timeout)
        if isinstance(self._transport, NcclTransport):
            # NCCL must see all ranks once before some of them exchange messages.
            self.all_reduce_((torch.zeros(1, device=self._device), Op.SUM))

    @classmethod
    def own(
        cls,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """The same ranks in a new process group, used by nothing else.

        All ranks of the group must call this. The new group ends with `close`, with
        the default group or, on Gloo, when nothing refers to this object any more.
        """
        parent = process_group or _get_default_group()
        known = cls(parent, timeout=timeout, device=device)
        # Ranks that call it by different names would wait for each other for ever.
        _check_names(known, own_groups.next_name(parent))
        others = gloo_scheduling.gloo_threads()
        with known._calling("new_group"):
            made = own_groups.make(parent, known.timeout)
        try:
            new = cls(made, timeout=known.timeout, device=device)
        except BaseException:
            own_groups.end(made)
            raise
        new._own = partial(own_groups.end, made)
        if isinstance(new._transport, GlooTransport):
            new._transport.leave_alone(others)
            new._own = weakref.finalize(new, own_groups.end_later, made)
            new._own.atexit = False
        return new

    def link(self, other: "TorchGroup") -> None:
        """Make a failure of either group one of both, so that all their ranks know."""
        self.on_failure(other.leave)
        other.on_failure(self.leave)

    def on_failure(self, call: Callable[[str], object]) -> None:
        """Call this, with what has failed, when this rank leaves the group."""
        self._on_failure.append(call)

    def leave(self, why: str) -> None:
        """End all calls of peers that wait for this rank; later calls raise."""
        if self._failure is None:
            self._failure = why
            self._leave()

    def close(self) -> None:
        """End the process group if it is this object's own; later calls raise.

        Any rank may call it alone, and twice.
        """
        self._failure = self._failure or "it was closed"
        own, self._own = self._own, None
        if own is not None:
            own()
            self._transport.close()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        checks.check_exchange(self, body, dst=dst, src=src, nbytes=nbytes)
        if body is not None and dst == self._rank:
            return body.clone()
        device = self._device if body is None else body.device
        sources = [] if src is None else [src]
        lengths = None if nbytes is None else [nbytes] * len(sources)
        outgoing = []
        if body is not None and dst is not None:
            outgoing = [(dst, self._transport.to_wire(body))]
        with self._calling("exchange", expected=nbytes is not None):
            incoming = self._swap(outgoing, sources, lengths)
        return _home(incoming[0][1], device) if incoming else None

    def subgroup(
        self, members: Sequence[int], name: str, *, near: bool = False
    ) -> Group:
        if near and self._device.type == "cpu":
            return SharedMemoryGroup(self, members)
        return super().subgroup(members, name, near=near)

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        checks.check_receives(self, bodies)
        with self._calling("post_receives"):
            self._transport.post_receives(bodies)

    def refuse_receives(self) -> None:
        self._transport.refuse_receives()

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        checks.check_all_to_all(self, bodies, nbytes)
        own = bodies[self._rank]
        # An all-gather sends one body to all: it moves to the wire once.
        wired = {
            key: self._transport.to_wire(body)
            for key, body in {id(body): body for body in bodies}.items()
        }
        # Each rank starts with the next one, so that not all send to rank 0 first.
        others = [(self._rank + s) % self._size for s in range(1, self._size)]
        sources = others[::-1]
        lengths = None if nbytes is None else [nbytes[src] for src in sources]
        outgoing = [(dst, wired[id(bodies[dst])]) for dst in others]
        with self._calling("all_to_all"):
            received = dict(self._swap(outgoing, sources, lengths))
        return [
            own.clone() if src == self._rank else _home(received[src], own.device)
            for src in range(self._size)
        ]

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        checks.check_all_reduce(parts)
        if self._size == 1:
            return
        with self._calling("all_reduce_"):
            wired = [(self._transport.to_wire(tensor), op) for tensor, op in parts]
            self._transport.all_reduce_(wired)
        for (moved, op), (tensor, _) in zip(wired, parts, strict=True):
            if op is Op.OR and isinstance(self._transport, NcclTransport):
                or_reduce_(moved, self)
            if moved is not tensor:
                # From pinned memory: the next to use the tensor waits for the copy.
                tensor.copy_(moved, non_blocking=tensor.is_cuda)

    def begin_all_reduce_(
        self, tensor: Tensor, done: Callable[[GroupError | None], None]
    ) -> None:
        """Start a sum and return.

        A thread of the backend calls `done` at the end, with the error if it failed.
        """
        with self._calling("all_reduce_"):
            work = self._transport.start(tensor, Op.SUM)

        def finish(future: "torch.futures.Future[list[Tensor]]") -> None:
            try:
                future.value()
            except RuntimeError as error:
                done(self._fail("all_reduce_", error))
            else:
                done(None)

        work.get_future().add_done_callback(finish)

    def _swap(
        self,
        outgoing: Transfers,
        sources: Sequence[int],
        lengths: Sequence[int] | None,
    ) -> Transfers:
        """Send, and receive a body from every source; unknown lengths go first."""
        if lengths is None:
            ahead = [
                (dst, torch.tensor([body.numel()]).view(torch.uint8))
                for dst, body in outgoing
            ]
            ahead = [(dst, self._transport.to_wire(length)) for dst, length in ahead]
            heads = [(src, checks.LENGTH_NBYTES) for src in sources]
            found = self._transport.swap(ahead, heads)
            lengths = [int(length.view(torch.int64)) for _, length in found]
            for src, length in zip(sources, lengths, strict=True):
                if not 0 <= length <= _LARGEST_NBYTES:
                    message = f"rank {src} announces a body of {length} bytes"
                    raise PeerError(message, ranks=(src,))
        return self._transport.swap(outgoing, list(zip(sources, lengths, strict=True)))

    @contextmanager
    def _calling(self, call: str, *, expected: bool = False) -> Iterator[None]:
        """Around every call; other than `expected` ones need idle early receives."""
        if self._failure is not None:
            raise GroupError(f"the group is unusable since {self._failure}")
        self._transport.deadline = time.monotonic() + self.timeout
        try:
            if not expected:
                self._transport.check_idle()
            yield
        except GroupError as error:
            self._failure = f"{call} failed: {error}"
            if isinstance(error, PeerError):
                self._leave()  # so that the others need not wait for this rank
            raise
        except RuntimeError as error:  # every error of torch.distributed is one
            raise self._fail(call, error) from error

    def _fail(self, call: str, error: RuntimeError) -> GroupError:
        self._failure = f"{call} failed: {error}"
        # A receive that timed out has closed all connections: they prove nothing then.
        # Backends round a timeout down to milliseconds.
        timed_out = time.monotonic() >= self._transport.deadline - 0.01
        closed, probe = self._leave()
        blamed = frozenset() if timed_out else closed
        named = frozenset(self.names[rank] for rank in blamed)
        failure = Failure(call, self.timeout, error, named, self._rank)
        found = probe.findings()
        missing = frozenset(self.names[rank] for rank in found.missing)
        return diagnose(failure, replace(found, missing=missing))

    def _leave(self) -> tuple[frozenset[int], FailureProbe]:
        """Report that this rank is alive, and close all its connections.

        Returns the peers whose connections were closed before.
        """
        closed = self._transport.closed_peers()
        name = self._transport.process_group.group_name
        store = PrefixStore(f"thinwire/{name}", _get_default_store())
        probe = FailureProbe(store, self._rank, self._size, self._transport.report())
        probe.report()
        self._transport.disconnect()
        for call in self._on_failure:
            call(self._failure or "it was left")
        return closed, probe


def _home(body: Tensor, device: torch.device) -> Tensor:
    """The body on a device, in order of the device's stream."""
    if body.device == device:
        return body
    return body.to(device, non_blocking=device.type == "cuda")


def _check_names(group: Group, name: int) -> None:
    """Refuse to make a group that its ranks would call by different names."""
    body = torch.tensor([name]).view(torch.uint8)
    bodies = group.all_gather(body, nbytes=[body.numel()] * group.size)
    counts = [int(each.view(torch.int64)) for each in bodies]
    if len(set(counts)) > 1:
        raise GroupError(
            f"ranks of this process group have made {counts} process groups so far: "
            "make the others (and attach other models) on all of these ranks, or "
            "reduce over the default group"
        )


def _backends(group: dist.ProcessGroup) -> dict[str, str]:
    """Which backend serves each type of device."""
    config = dist.get_backend_config(group)
    backends = dict(pair.split(":") for pair in config.split(","))
    unknown = set(backends.values()) - {"gloo", "nccl"}
    if unknown:
        raise ConfigError(f"process groups use gloo or nccl, not {', '.join(unknown)}")
    return backends


def _timeout(
    group: dist.ProcessGroup, device: torch.device, timeout: float | None
) -> float:
    if timeout is None:
        options = group._get_backend(device).options  # noqa: SLF001 (no public way)
        default: timedelta = options._timeout  # noqa: SLF001
        return default.total_seconds()
    if timeout <= 0:
        raise ConfigError(f"a timeout must be positive, not {timeout}")
    return timeout
