"""TorchGroup: ranks of torch.distributed, over Gloo or NCCL.

Gathers and all-to-alls send each body straight to each peer, all at once, so that
lengths may differ (Gloo's own refuse that). All-reduces are the library's; on Gloo a
maximum takes fewer messages by dissemination (`max_reduce.py`).

On Gloo a dead or stuck peer makes every survivor raise a `PeerError` that names it,
about a timeout after the failure at the latest. A rank that notices reports itself in
the store and cuts all its connections: that wakes the others, which do the same, and
the ranks that have not reported are the ones to blame (`failure_probe.py`). Found by
trying on torch 2.13: `abort()` wakes nobody, while a receive that times out closes
every connection of its process group, and a receive from a dead peer raises at once.

On NCCL calls do not block the host, so a lost peer is found by its watchdog.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import (
    _get_default_group,
    _get_default_store,
    _world,
)

from thinwire import kernels
from thinwire.errors import ConfigError, GroupError
from thinwire.groups import checks, gloo_scheduling
from thinwire.groups.expected import Expected
from thinwire.groups.failure_probe import Failure, FailureProbe, diagnose
from thinwire.groups.group import Op
from thinwire.groups.max_reduce import Transfers, max_reduce_

_LARGEST_NBYTES = 1 << 34  # a longer body is a garbled length, not a message
_TAG = 0
_PROBE_TAG = 0x7417  # no message has it: a probe never receives anything
_REDUCE = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.MAX: dist.ReduceOp.MAX,
    Op.OR: dist.ReduceOp.BOR,
}


class TorchGroup:
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
        self._process_group = process_group or _get_default_group()
        backends = _backends(self._process_group)
        default = "cpu" if "cpu" in backends else "cuda"
        self._device = torch.device(device if device is not None else default)
        self._native = backends.get(self._device.type) == "nccl"
        # The device that the backend itself works on.
        self._wire = self._device if self._native else torch.device("cpu")
        self._seconds = _timeout(self._process_group, self._wire, timeout)
        self._rank = self._process_group.rank()
        self._size = self._process_group.size()
        self._deadline = 0.0
        self._failure: str | None = None
        self._loops = () if self._native else gloo_scheduling.loops()
        # Receives that are under way.
        self._expected = Expected[tuple[Tensor, dist.Work]]()
        if self._native:
            # NCCL must see all ranks once before some of them exchange messages.
            self.all_reduce_((torch.zeros(1, device=self._wire), Op.SUM))

    @classmethod
    def own(
        cls,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """The same ranks in a new process group, whose traffic meets nobody else's.

        All ranks of the group must call this. The new group lives as long as the
        default one: destroying it earlier would free its name, and the next group of
        these ranks would take it and find the old one's addresses in the store.
        """
        group = process_group or _get_default_group()
        ranks = dist.get_process_group_ranks(group)
        # A group of some ranks is named by how many groups each of them knows, and
        # ranks that call it by different names would wait for each other for ever.
        partial = len(ranks) < dist.get_world_size()
        if partial:
            _check_names(cls(group, timeout=timeout, device=device))
        others = gloo_scheduling.loops()
        made = dist.new_group(
            ranks,
            timeout=None if timeout is None else timedelta(seconds=timeout),
            backend=dist.get_backend(group),
            use_local_synchronization=partial,
        )
        new = cls(made, timeout=timeout, device=device)
        # Other groups may end before this one, and their threads with them.
        new._loops = tuple(set(new._loops) - set(others)) or new._loops
        return new

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
        outgoing = [] if body is None or dst is None else [(dst, self._to_wire(body))]
        sources = [] if src is None else [src]
        lengths = None if nbytes is None else [nbytes] * len(sources)
        with self._calling("exchange", expected=nbytes is not None):
            incoming = self._swap(outgoing, sources, lengths)
        return _home(incoming[0][1], device) if incoming else None

    def expect(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Start to receive, where the backend can: Gloo.

        A sender who has not heard of a receive asks first, and its data wait for the
        answer: a message more, and two threads to be woken.
        """
        checks.check_expected(self, bodies)
        if self._native:
            return
        with self._calling("expect"):
            mail = [(src, self._room(nbytes)) for src, nbytes in bodies if nbytes]
            for (src, room), work in zip(mail, self._receive(mail), strict=True):
                self._expected.add(src, room.numel(), (room, work))

    def all_gather(self, body: Tensor, *, nbytes: Sequence[int] | None) -> list[Tensor]:
        checks.check_all_gather(self, body, nbytes)
        wired = self._to_wire(body)
        return self._direct([wired] * self._size, nbytes, body, call="all_gather")

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        checks.check_all_to_all(self, bodies, nbytes)
        wired = [self._to_wire(body) for body in bodies]
        return self._direct(wired, nbytes, bodies[self._rank], call="all_to_all")

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        checks.check_all_reduce(parts)
        if self._size == 1:
            return
        with self._calling("all_reduce_"):
            wired = [(self._to_wire(tensor), op) for tensor, op in parts]
            apart = Op.OR if self._native else Op.MAX  # not left to the library
            works = [self._start(moved, op) for moved, op in wired if op is not apart]
            if not self._native:
                largest = [moved for moved, op in wired if op is Op.MAX]
                places = self._rank, self._size
                max_reduce_(largest, *places, receive=self._receive, send=self._send)
            self._wait(works)
        for (moved, op), (tensor, _) in zip(wired, parts, strict=True):
            if self._native and op is Op.OR:
                self._or_(moved)
            if moved is not tensor:
                # From pinned memory: whoever uses the tensor next waits for it.
                tensor.copy_(moved, non_blocking=tensor.is_cuda)

    def begin_all_reduce_(
        self, tensor: Tensor, done: Callable[[GroupError | None], None]
    ) -> None:
        """Start a sum and return; `done` is told how it ended, from another thread."""
        with self._calling("all_reduce_"):
            work = self._start(tensor, Op.SUM)

        def finish(future: "torch.futures.Future[list[Tensor]]") -> None:
            try:
                future.value()
            except RuntimeError as error:
                done(self._fail("all_reduce_", error))
            else:
                done(None)

        work.get_future().add_done_callback(finish)

    def now(self) -> float:
        return time.perf_counter()

    def _to_wire(self, tensor: Tensor) -> Tensor:
        """The tensor where the backend can work on it; itself if it is there."""
        if tensor.device.type == self._wire.type:
            return tensor.contiguous()
        if self._wire.type != "cpu":
            return tensor.to(self._wire).contiguous()
        return kernels.fetch(tensor)

    def _direct(
        self,
        outgoing: Sequence[Tensor],
        nbytes: Sequence[int] | None,
        own: Tensor,
        *,
        call: str,
    ) -> list[Tensor]:
        """Every peer's body, in order of rank; `own` is what this rank keeps."""
        # Starting behind one's own rank spreads the load: nobody is everyone's first.
        others = [(self._rank + s) % self._size for s in range(1, self._size)]
        sources = others[::-1]
        lengths = None if nbytes is None else [nbytes[src] for src in sources]
        with self._calling(call):
            sent = [(dst, outgoing[dst]) for dst in others]
            received = dict(self._swap(sent, sources, lengths))
        return [
            own.clone() if src == self._rank else _home(received[src], own.device)
            for src in range(self._size)
        ]

    def _swap(
        self, outgoing: Transfers, sources: Sequence[int], lengths: Sequence[int] | None
    ) -> Transfers:
        if lengths is None:
            lengths = self._swap_lengths(outgoing, sources)
        if self._native:
            incoming = list(zip(sources, map(self._room, lengths), strict=True))
            self._transfer(outgoing, incoming)
            return incoming
        incoming, works = [], []
        with gloo_scheduling.kept_back(self._loops):
            for src, nbytes in zip(sources, lengths, strict=True):
                room, under_way = self._next(src, nbytes)
                incoming.append((src, room))
                works += under_way
            works += self._start_sending(outgoing)
        self._wait(works)
        return incoming

    def _next(self, src: int, nbytes: int) -> tuple[Tensor, list[dist.Work]]:
        """The next body of a rank, over Gloo: since it was expected, or from now on."""
        expected = self._expected.take(src, nbytes) if nbytes else None
        if expected is not None:
            room, work = expected
            return room, [work]
        room = self._room(nbytes)
        return room, self._start_receiving([(src, room)])

    def _room(self, nbytes: int) -> Tensor:
        # Pinned, where it goes on to a device: a copy that nobody waits for.
        pin = self._device.type == "cuda" and not self._native
        return torch.empty(nbytes, dtype=torch.uint8, device=self._wire, pin_memory=pin)

    def _swap_lengths(self, outgoing: Transfers, sources: Sequence[int]) -> list[int]:
        ours = [
            (dst, torch.tensor([body.numel()], device=self._wire))
            for dst, body in outgoing
        ]
        theirs = [
            (src, torch.empty(1, dtype=torch.int64, device=self._wire))
            for src in sources
        ]
        self._transfer(ours, theirs)
        lengths = [int(length) for _, length in theirs]
        for src, length in zip(sources, lengths, strict=True):
            if not 0 <= length <= _LARGEST_NBYTES:
                raise GroupError(f"rank {src} announces a body of {length} bytes")
        return lengths

    def _transfer(self, outgoing: Transfers, incoming: Transfers) -> None:
        """Send and receive all of these at once; empty ones do not travel."""
        if self._native:
            self._wait(self._batched(_full(outgoing), _full(incoming)))
        else:
            self._send(outgoing, self._receive(incoming))

    # Without the wrappers of torch.distributed, which take longer than the sends.

    def _receive(self, incoming: Transfers) -> list[dist.Work]:
        """Start to receive, over Gloo."""
        with gloo_scheduling.kept_back(self._loops):
            return self._start_receiving(incoming)

    def _send(self, outgoing: Transfers, under_way: Sequence[dist.Work]) -> None:
        """Send, over Gloo, and wait for that and for what is under way."""
        with gloo_scheduling.kept_back(self._loops):
            sent = self._start_sending(outgoing)
        self._wait([*under_way, *sent])

    def _start_receiving(self, incoming: Transfers) -> list[dist.Work]:
        group = self._process_group
        return [group.recv([tensor], src, _TAG) for src, tensor in _full(incoming)]

    def _start_sending(self, outgoing: Transfers) -> list[dist.Work]:
        group = self._process_group
        return [group.send([tensor], dst, _TAG) for dst, tensor in _full(outgoing)]

    def _batched(self, sent: Transfers, received: Transfers) -> list[dist.Work]:
        """As one launch, which NCCL needs in order to do all at once."""
        transfers = [
            dist.P2POp(call, tensor, group=self._process_group, group_peer=peer)
            for call, mail in ((dist.irecv, received), (dist.isend, sent))
            for peer, tensor in mail
        ]
        return dist.batch_isend_irecv(transfers) if transfers else []

    def _start(self, tensor: Tensor, op: Op) -> dist.Work:
        # Gloo knows few integer types, and bits are the same in all of them.
        tensor = tensor.view(-1).view(torch.uint8) if op is Op.OR else tensor
        group = self._process_group
        work: dist.Work = dist.all_reduce(
            tensor, op=_REDUCE[op], group=group, async_op=True
        )
        return work

    def _or_(self, tensor: Tensor) -> None:
        """Bitwise OR where the backend has none: each rank combines one chunk."""
        flat = tensor.view(-1).view(torch.uint8)
        chunk = -(-flat.numel() // self._size)
        padded = flat.new_zeros(chunk * self._size)
        padded[: flat.numel()] = flat
        lengths = [chunk] * self._size
        pieces = self.all_to_all(torch.split(padded, chunk), nbytes=lengths)
        own = pieces[0]
        for piece in pieces[1:]:
            own.bitwise_or_(piece)
        whole = torch.cat(self.all_gather(own, nbytes=lengths))
        flat.copy_(whole[: flat.numel()])

    def _wait(self, works: Sequence[dist.Work]) -> None:
        for work in works:
            if self._native:
                work.wait()  # with a timeout it would block the host
            else:
                left = max(self._deadline - time.monotonic(), 0.001)
                work.wait(timedelta(seconds=left))

    @contextmanager
    def _calling(self, call: str, *, expected: bool = False) -> Iterator[None]:
        """Around every call; only one that brings what is `expected` may meet that."""
        if self._failure is not None:
            raise GroupError(f"the group is unusable since {self._failure}")
        self._deadline = time.monotonic() + self._seconds
        try:
            if not expected:
                self._expected.check_empty()
            yield
        except GroupError as error:
            self._failure = f"{call} failed: {error}"
            raise
        except RuntimeError as error:  # every error of torch.distributed is one
            raise self._fail(call, error) from error

    def _fail(self, call: str, error: RuntimeError) -> GroupError:
        self._failure = f"{call} failed: {error}"
        return self._explain(call, error)

    def _explain(self, call: str, error: RuntimeError) -> GroupError:
        # A receive that timed out has closed all connections: they prove nothing then.
        # Backends round a timeout down to milliseconds.
        timed_out = time.monotonic() >= self._deadline - 0.01
        closed, probes = self._probe()
        prefix = f"thinwire/{self._process_group.group_name}"
        store = PrefixStore(prefix, _get_default_store())
        probe = FailureProbe(store, self._rank, self._size)
        probe.report()
        self._cut(probes)
        blamed = frozenset() if timed_out else closed
        failure = Failure(call, self._seconds, error, blamed)
        return diagnose(failure, probe.findings())

    def _probe(self) -> tuple[frozenset[int], list[dist.Work]]:
        """Peers without a connection, and receives that wait on the others'."""
        closed, probes = set(), []
        others = () if self._native else set(range(self._size)) - {self._rank}
        for peer in others:
            room = torch.empty(1, dtype=torch.uint8)
            group = self._process_group
            try:
                probe = dist.irecv(room, group_src=peer, group=group, tag=_PROBE_TAG)
            except RuntimeError:
                closed.add(peer)
            else:
                probes += [probe] if probe is not None else []
        return frozenset(closed), probes

    def _cut(self, probes: Sequence[dist.Work]) -> None:
        """Close all connections, so that whoever waits for this rank stops."""
        if self._native:
            self._process_group.abort()
        for probe in probes[:1]:
            with suppress(RuntimeError):  # this time-out closes them
                probe.wait(timedelta(milliseconds=1))


def _full(mail: Transfers) -> Transfers:
    """Without empty bodies, which do not travel."""
    return [(peer, tensor) for peer, tensor in mail if tensor.numel()]


def _home(body: Tensor, device: torch.device) -> Tensor:
    """A body where it belongs; on a device, for whoever comes after it there."""
    if body.device == device:
        return body
    return body.to(device, non_blocking=device.type == "cuda")


def _check_names(group: TorchGroup) -> None:
    """Refuse to make a group that its ranks would call by different names."""
    known = torch.tensor([len(_world.pg_names)], device=group._wire)  # noqa: SLF001
    body = known.view(torch.uint8)
    bodies = group.all_gather(body, nbytes=[body.numel()] * group.size)
    counts = [int(each.view(torch.int64)) for each in bodies]
    if len(set(counts)) > 1:
        raise GroupError(
            f"ranks of this process group have made {counts} process groups so far: "
            "make the others (and attach other models) alike on all of these ranks, or "
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
