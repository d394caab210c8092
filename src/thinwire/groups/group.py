"""Group: the narrow waist between algorithms and whatever moves bytes."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from torch import Tensor


class Op(Enum):
    """How `all_reduce_` combines what the ranks hold."""

    SUM = "sum"
    MAX = "max"
    OR = "or"


class Group(Protocol):
    """Ranks that exchange bytes. Bodies are one-dimensional uint8 tensors.

    Every rank makes the same calls in the same order. `nbytes` is how many bytes a
    message has where both ends know it beforehand; None means that they do not, and a
    length travels ahead of each body. Zero bytes are a message like any other (and
    cost nothing where the length is known). A failure raises a `GroupError`, a
    `PeerError` where a peer is to blame; the group is then unusable.
    """

    @property
    def rank(self) -> int:
        """Which of the ranks this one is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

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
        the length of what comes in or, without `src`, of what goes out: None tells
        both ends that a length travels first. A rank exchanges with itself only both
        ways. A one-way send may wait until it is received (Gloo's do), so two ranks
        must not send to each other first and receive later: that is an exchange.
        """
        ...

    def expect(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Say what later exchanges will bring: a rank and how many bytes, in order.

        A group that can makes room and tells these ranks that they may send. Nothing
        but what is expected may come from them until all of it has come.
        """
        ...

    def all_gather(self, body: Tensor, *, nbytes: Sequence[int] | None) -> list[Tensor]:
        """Every rank's body, in order of rank; `nbytes` lists every rank's length."""
        ...

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        """`bodies[r]` goes to rank r; what each rank sent here, in order of rank.

        `nbytes` lists the lengths of what comes in.
        """
        ...

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        """Combine each tensor over all ranks, in place.

        All parts are started together and waited for together. The order of additions
        is the library's own; all ranks end with the same bits. A maximum is for a few
        numbers: it travels whole, in ceil(log2 P) rounds (NCCL: in the library's own
        way). That of NaN and a number is either. OR combines the bits of integers and
        booleans.
        """
        ...

    def now(self) -> float:
        """Seconds on this rank's clock, which is simulated where the rank is."""
        ...
