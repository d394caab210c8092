"""Channel: lists between ranks, sealed once and forwarded as bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs import Codec, Values
from thinwire.errors import ConfigError, WireError
from thinwire.groups import Group
from thinwire.schedules import Step
from thinwire.sparse import SparseVector
from thinwire.wire import Packet


class ListSpec(NamedTuple):
    """What a receiver knows of a list: the size of its vector, its nnz if known.

    `part` is the argument that its sender passes to `Channel.seal`.
    """

    size: int
    nnz: int | None
    part: int = 0


class Sealed:
    """An encoded list: its bytes, and the vector that every rank decodes from them.

    The vector may share memory with the body: change neither. `vector` decodes it on
    the first access, so a rank that only forwards a list does not decode it.
    """

    __slots__ = ("_decode", "_vector", "body")

    def __init__(self, body: Tensor, decode: Callable[[], SparseVector]) -> None:
        self.body = body
        self._decode = decode
        self._vector: SparseVector | None = None

    @property
    def vector(self) -> SparseVector:
        """The decoded list."""
        if self._vector is None:
            self._vector = self._decode()
        return self._vector


@dataclass(frozen=True, slots=True)
class Channel:
    """A group in one reduction: `step` counts reductions, `seed` is the user's.

    `seal` encodes a list once; ranks that pass it on forward these bytes. Dense buffers
    and raw bytes go through `group`. The thread that may call the group may call the
    channel.

    With `deferred_errors`, packets of a fixed length in the memory of a device are
    checked there: an error sets the flag of its sender and is not raised. The decoded
    list is then arbitrary.

    Packets with a value that is not finite are refused, unless `finite` is False: then
    the ranks have not agreed that their gradients are finite.
    """

    group: Group
    codec: Codec | None = None
    step: int = 0
    seed: int = 0
    deferred_errors: kernels.DeferredErrors | None = None
    finite: bool = True

    @property
    def rank(self) -> int:
        """This rank."""
        return self.group.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.group.size

    def using(self, codec: Codec) -> "Channel":
        """The same channel with another codec."""
        return replace(self, codec=codec)

    def seal(
        self, vector: SparseVector, *, source: Values | None = None, part: int = 0
    ) -> Sealed:
        """Encode a list; the result holds it as every receiver will decode it.

        `part` identifies a list in a reduction (its phase, its block), not a rank:
        ranks that hold the same list must produce the same bytes. Only the single
        holder of a list may pass a `source`.
        """
        key = self._key(part)
        packet = self._codec.encode(vector, source=source, key=key)
        return Sealed(packet.body, lambda: self._adopt(packet, vector, key))

    def rounding(self, size: int) -> torch.dtype | None:
        """The dtype that the codec rounds values to: see `Codec.rounding`."""
        return self._codec.rounding(size)

    def start(
        self, steps: Sequence[Step], spec: Callable[[int, int], ListSpec]
    ) -> "Run":
        """Post the receives of a schedule, if all their lengths are known.

        `spec(number, phase)` describes a list. The run that is returned takes the
        steps.
        """
        messages, receives = [], []
        for step in steps:
            numbers = step.sends if step.src is None else step.receives
            specs = [spec(number, step.phase) for number in numbers]
            messages.append((step, specs))
            if step.src is not None:
                receives.append((step.src, self._nbytes(specs)))
        known = [(src, sum(nbytes)) for src, nbytes in receives if nbytes is not None]
        if known and len(known) == len(receives):
            self.group.post_receives(known)
        return Run(self, iter(messages))

    def exchange(
        self,
        lists: Sequence[Sealed],
        *,
        dst: int | None,
        src: int | None,
        expect: Sequence[ListSpec],
    ) -> list[Sealed]:
        """Send lists as one message, and return the lists of the message received.

        `expect` describes the lists received or, without `src`, those sent. Either both
        ends know the nnz of all of them, or neither end does.
        """
        nbytes = self._nbytes(expect)
        body = None
        if dst is not None:
            body = _joined([sealed.body for sealed in lists])
        message = self.group.exchange(
            body, dst=dst, src=src, nbytes=None if nbytes is None else sum(nbytes)
        )
        if src is None or message is None:
            return []
        try:
            bodies = self._cut(message, nbytes, len(expect))
        except WireError as error:
            whose = self.group.rank_in_whole(src)
            raise WireError(f"from rank {whose}: {error}") from error
        return [
            self._open(body, spec, src)
            for body, spec in zip(bodies, expect, strict=True)
        ]

    def all_gather(self, sealed: Sealed, *, expect: ListSpec) -> list[Sealed]:
        """Every rank's list, in order of rank."""
        nbytes = self._nbytes([expect])
        bodies = self.group.all_gather(
            sealed.body, nbytes=None if nbytes is None else nbytes * self.size
        )
        return [
            sealed if rank == self.rank else self._open(body, expect, rank)
            for rank, body in enumerate(bodies)
        ]

    def all_to_all(
        self, lists: Sequence[Sealed | None], *, expect: Sequence[ListSpec]
    ) -> list[Sealed | None]:
        """Send `lists[r]` to rank r; return what each rank sent, in order of rank.

        `expect` describes what comes in. None is this rank's own place.
        """
        nbytes = self._nbytes(expect)
        if nbytes is not None:
            nbytes[self.rank] = 0
        bodies = self.group.all_to_all(
            [_nothing() if each is None else each.body for each in lists], nbytes=nbytes
        )
        return [
            None if rank == self.rank else self._open(body, expect[rank], rank)
            for rank, body in enumerate(bodies)
        ]

    @property
    def _codec(self) -> Codec:
        if self.codec is None:
            raise ConfigError("this channel has no codec; make one with using(codec)")
        return self.codec

    def _adopt(self, packet: Packet, vector: SparseVector, key: int) -> SparseVector:
        if self.deferred_errors is not None:
            rank = self.group.rank_in_whole(self.rank)
            packet = replace(packet, errors=self.deferred_errors.flag(rank))
        return self._codec.adopt(packet, vector, key=key)

    def _key(self, part: int) -> int:
        # Odd multipliers keep distinct (seed, step, part) apart in 63 bits.
        mixed = (self.seed * 0x9E3779B97F4A7C15) ^ (self.step * 0xC2B2AE3D27D4EB4F)
        return (mixed ^ (part * 0x165667B19E3779F9)) & (2**63 - 1)

    def _nbytes(self, expect: Sequence[ListSpec]) -> list[int] | None:
        if self._codec.nbytes(0, 0) is None:
            return None  # both ends then send lengths
        lengths = []
        for size, nnz, _ in expect:
            length = None if nnz is None else self._codec.nbytes(size, nnz)
            if length is None:
                return None
            lengths.append(length)
        return lengths

    def _cut(
        self, message: Tensor, nbytes: list[int] | None, count: int
    ) -> Sequence[Tensor]:
        if nbytes is not None:
            if message.numel() != sum(nbytes):
                raise WireError(f"{message.numel()} bytes, not {sum(nbytes)}")
            return message.split_with_sizes(nbytes)
        bodies: list[Tensor] = []
        while message.numel():
            if len(bodies) == count:
                raise WireError(f"more than {count} lists")
            length = Packet.announced(message)
            bodies.append(message[:length])
            message = message[length:]
        if len(bodies) != count:
            raise WireError(f"{len(bodies)} lists, not {count}")
        return bodies

    def _open(self, body: Tensor, spec: ListSpec, src: int) -> Sealed:
        size, nnz, part = spec
        key, whose = self._key(part), self.group.rank_in_whole(src)
        header = None
        if self.deferred_errors is not None and nnz is not None:
            header = self._codec.header(size, nnz)
        try:
            if self.deferred_errors is None or header is None:
                packet = Packet.parse(body, finite=self.finite)
            else:
                # In device memory: the header is compared there, not fetched.
                flag = self.deferred_errors.flag(whose)
                kernels.flag_mismatch_(flag, body[: len(header)], header)
                packet = Packet.parse(body, header, flag, finite=self.finite)
            vector = self._codec.decode(packet, size, nnz, key=key)
        except WireError as error:
            raise WireError(f"from rank {whose}: {error}") from error
        return Sealed(body, lambda: vector)


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule that was started on a channel."""

    channel: Channel
    _messages: Iterator[tuple[Step, list[ListSpec]]]

    def exchange(self, lists: Sequence[Sealed] = ()) -> list[Sealed]:
        """Take the next step: send its lists as one message, return those received."""
        step, specs = next(self._messages)
        return self.channel.exchange(lists, dst=step.dst, src=step.src, expect=specs)


def _joined(bodies: list[Tensor]) -> Tensor:
    if len(bodies) == 1:
        return bodies[0]
    return torch.cat(bodies) if bodies else _nothing()


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)
