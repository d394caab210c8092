"""Group: the interface between algorithms and the library that moves bytes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

from torch import Tensor


class Op(Enum):
    """How `all_reduce_` combines what the ranks hold."""

    SUM = "sum"
    MAX = "max"
    OR = "or"


class Group(ABC):
    """Ranks that exchange bytes. Bodies are one-dimensional uint8 tensors.

    Every rank makes the same calls in the same order. `nbytes` is the length of a
    message if both ends know it; None if they do not: each body is then preceded by its
    length. An empty message is a message too (and costs nothing if its length is
    known). A failure raises a `GroupError`, a `PeerError` if a peer is the cause; the
    group is then unusable.

    One thread at a time calls a group; `thinwire.groups` says which.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank, from 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ranks."""

    @property
    def everyone(self) -> "Group":
        """Where a model is sharded: the ranks of all shards, not of one alone."""
        return self

    @abstractmethod
    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        """Send `body` to `dst` and return what `src` sends, both at once.

        Either may be left out (`body` None and `dst` None, or `src` None). `nbytes` is
        the length of what comes in or, without `src`, of what goes out; None on both
        ends: a length is sent first. A rank exchanges with itself only both ways. A
        one-way send may block until it is received (Gloo's do), so two ranks must not
        both send first and receive later: they exchange.
        """

    @abstractmethod
    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        """Send `bodies[r]` to rank r; return what each rank sent, in order of rank.

        `nbytes` lists the lengths of what comes in.
        """

    @abstractmethod
    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        """Combine each tensor over all ranks, in place.

        All parts are started together and waited for together. The order of additions
        is the library's own; all ranks end with the same bits. A maximum is for a few
        numbers: it travels whole, in ceil(log2 P) rounds (NCCL: in the library's own
        way). That of NaN and a number is either. OR combines the bits of integers and
        booleans.
        """

    def all_gather(self, body: Tensor, *, nbytes: Sequence[int] | None) -> list[Tensor]:
        """Every rank's body, in order of rank; `nbytes` lists every rank's length."""
        return self.all_to_all([body] * self.size, nbytes=nbytes)

    def post_receives(  # noqa: B027 (a default: nothing)
        self, bodies: Sequence[tuple[int, int]]
    ) -> None:
        """Start to receive what later exchanges will bring: (rank, nbytes), in order.

        Groups do nothing here if a send does not wait for its receive. Until all of
        `bodies` are received, the only allowed calls are the exchanges that do so, and
        `refuse_receives`.
        """

    def refuse_receives(self) -> None:  # noqa: B027 (a default: nothing)
        """Give up what `post_receives` has started, because the reduction is refused.

        For errors that every rank raises alike, between the same calls: the group then
        stays usable. If only some ranks do, a later call fails, as if they were stuck.
        """

    def subgroup(
        self, members: Sequence[int], name: str, *, near: bool = False
    ) -> "Group":
        """Some ranks of this group, this one among them, numbered as they are given.

        The members then call it as any group, all of them in the same order. What is
        sent through it is counted under the `name`. Ranks that are `near` may share
        memory: what an all-to-all returns is then valid until the next call, and its
        sender can change it, so it is for numbers and not for packets.
        """
        from thinwire.groups.subgroup import SubGroup  # noqa: PLC0415 - it is a group

        return SubGroup(self, members)

    @property
    def shares_memory(self) -> bool:
        """Whether ranks are known to pass long messages through memory they share."""
        return False

    def rank_in_whole(self, rank: int) -> int:
        """The number that a rank of a subgroup has in the whole group, for errors."""
        return rank

    def now(self) -> float:
        """Seconds on this rank's clock."""
        return time.perf_counter()


class WrappedGroup(Group):
    """A group around a group, to derive from: the same ranks, clock and receives."""

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        self._group.post_receives(bodies)

    def refuse_receives(self) -> None:
        self._group.refuse_receives()

    @property
    def shares_memory(self) -> bool:
        return self._group.shares_memory

    def rank_in_whole(self, rank: int) -> int:
        return self._group.rank_in_whole(rank)

    def now(self) -> float:
        return self._group.now()
