"""The contract of collectives: agree on a sum, keep what was not delivered."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from numbers import Integral
from typing import Protocol, Self

from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

Room = Callable[[], Tensor]
"""Room for a dense total: a float32 vector of the size of `x`, made when asked."""

Total = SparseVector | Tensor


class Grade(Enum):
    """How exactly a collective keeps the law, in floats."""

    EXACT = "exact"  # integers come out equal
    ROUNDING = "rounding"  # gap at most 8 eps x ranks x sum |x| per element
    NONE = "none"  # an estimate


@dataclass(slots=True)
class State:
    """What a collective keeps between reductions of one vector.

    `saved` are whole numbers that results depend on: a checkpoint holds them. They are
    alike on all ranks, those named "...@part" on the ranks of that part. The rest
    follows from the layout: `width` has the elements of a row, where rows are reduced;
    `size` those of the vector, where a policy goes by it.
    """

    saved: dict[str, int] = field(default_factory=dict)
    width: int = 1
    size: int = 0


class Collective(Protocol):
    """A frozen dataclass of hyper-parameters; its state is the caller's.

    `all_reduce_` receives this rank's accumulated gradient `x` and changes it in place.
    On return `x` holds what was not delivered, and the total is the same, bit for bit,
    on every rank. Over all ranks: sum(x before) = total + sum(x after).

    Collectives on lists use `x` through a `Ledger`; others use the tensor `x.whole()`.
    """

    @property
    def grade(self) -> Grade:
        """How exactly the law holds."""
        ...

    @property
    def coded(self) -> bool:
        """Whether lists travel, so that a codec is needed."""
        ...

    @property
    def density(self) -> float | None:
        """The fraction kept; None for a collective that keeps everything."""
        ...

    def with_density(self, density: float) -> Self:
        """The same collective at another density."""
        ...

    def check(self, ranks: int) -> None:
        """Refuse a number of ranks that the hyper-parameters do not fit."""
        ...

    def init(self, layout: Layout) -> State: ...

    def all_reduce_(
        self, x: Accumulator, channel: Channel, state: State, out: Room
    ) -> Total: ...

    def direct(self, state: State, step: int) -> bool:
        """Whether this step is the group's all-reduce of the whole vector, no more."""
        ...

    def curious(self, state: State, step: int) -> bool:
        """Whether it matters how long the whole reduction of this step takes."""
        ...

    def learn(self, seconds: float, channel: Channel, state: State) -> None:
        """Take note that the reduction is over; `seconds` count if it was curious.

        All ranks call it after every reduction: they may exchange what they learnt.
        """
        ...

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The card, as code: what the busiest rank sends, and in how many rounds."""
        ...


class Steady:
    """What collectives that do not care how long they take have in common."""

    __slots__ = ()

    def direct(self, state: State, step: int) -> bool:
        return False

    def curious(self, state: State, step: int) -> bool:
        return False

    def learn(self, seconds: float, channel: Channel, state: State) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Selecting(Steady):
    """What collectives that send the largest `density` of a vector have in common."""

    density: float = 0.01

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def grade(self) -> Grade:
        return Grade.EXACT

    @property
    def coded(self) -> bool:
        return True

    def with_density(self, density: float) -> Self:
        return replace(self, density=density)

    def check(self, ranks: int) -> None:
        return None

    def init(self, layout: Layout) -> State:
        return State()


@dataclass(frozen=True, slots=True)
class Complete(Steady):
    """What collectives that deliver the whole vector, uncoded, have in common."""

    @property
    def coded(self) -> bool:
        return False

    @property
    def density(self) -> None:
        return None

    def with_density(self, density: float) -> Self:
        raise ConfigError(
            f"{self} keeps everything: it has no density to set {density}"
        )

    def check(self, ranks: int) -> None:
        return None

    def init(self, layout: Layout) -> State:
        return State()


def check_density(density: float) -> None:
    """Refuse a density that keeps nothing, or more than everything.

    >>> check_density(1.5)
    Traceback (most recent call last):
    thinwire.errors.ConfigError: density is 1.5: the fraction kept must be ...
    """
    if not 0.0 < density <= 1.0:
        raise ConfigError(
            f"density is {density}: the fraction kept must be above 0 and at most 1, "
            "for example 0.01 to keep 1 %"
        )


def check_whole(name: str, value: object, remedy: str, most: float = inf) -> None:
    """Refuse what is not a whole number from 1 to `most`; True and False are none.

    >>> check_whole("width", 2.5, "give the elements of a block")
    Traceback (most recent call last):
    thinwire.errors.ConfigError: width is 2.5: give the elements of a block
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:  # type: ignore[operator]
        raise ConfigError(f"{name} is {value!r}: {remedy}")


def packet_nbytes(codec: Codec | None, size: int, nnz: int) -> int:
    """The length of a packet on a card, where the codec fixes it."""
    nbytes = None if codec is None else codec.nbytes(size, nnz)
    if nbytes is None:
        raise ConfigError(
            f"the packets of {codec} depend on the data: their cost can be counted, "
            "not stated in advance"
        )
    return nbytes
