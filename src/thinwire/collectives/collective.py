"""Collective: the sum of a vector over all ranks; what is not delivered is kept."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Self, get_args

from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.arguments import is_number, is_whole
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives.memory import CollectiveMemory
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

MakeBuffer = Callable[[], Tensor]
"""Makes a float32 vector of the size of `x` for a dense total."""

Total = SparseVector | Tensor


class Grade(Enum):
    """How exactly a collective keeps the law, in floats."""

    EXACT = "exact"  # sums of integers are equal
    ROUNDING = "rounding"  # gap at most 8 eps x ranks x sum |x| per element
    NONE = "none"  # an estimate

    @classmethod
    def weakest(cls, *grades: "Grade") -> "Grade":
        """The grade of a collective that uses collectives of these grades."""
        return max(grades, key=list(cls).index)


class Collective(ABC):
    """One algorithm; a subclass is a frozen dataclass of hyper-parameters.

    One object serves any number of vectors: what it remembers of a vector is in the
    memory that `init` makes and the caller passes to `all_reduce_`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def grade(self) -> Grade:
        """How exactly the law holds."""

    @property
    def coded(self) -> bool:
        """Whether it sends lists, so that it needs a codec."""
        return False

    @property
    def density(self) -> float | None:
        """The fraction of the elements that is sent; None if all are."""
        return None

    def with_density(self, density: float) -> Self:
        """The same collective at another density."""
        if self.density is None:
            raise ConfigError(
                f"{self} keeps everything: it has no density to set {density}"
            )
        return replace(self, density=density)  # type: ignore[type-var]

    def check(self, ranks: int) -> None:
        """Raise a `ConfigError` if the hyper-parameters do not fit this many ranks."""
        return None

    def init(self, layout: Layout) -> CollectiveMemory:
        """The memory of one vector, before its first reduction."""
        return CollectiveMemory()

    @abstractmethod
    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        """Return the total over all ranks; leave in `x` what was not delivered.

        `x` is this rank's accumulated gradient. The total has the same bits on every
        rank, and sum(x before) = total + sum(x after) over all ranks. A dense total is
        written into `out()`.

        Collectives on lists use `x` through a `Ledger`, others the tensor `x.whole()`.
        """

    @abstractmethod
    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The rounds of a reduction, and the bytes that the busiest rank sends."""


@dataclass(frozen=True, slots=True)
class Selecting(Collective):
    """Base class of collectives that send the largest elements of a vector."""

    density: float = 0.01

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def grade(self) -> Grade:
        return Grade.EXACT

    @property
    def coded(self) -> bool:
        return True


def check_density(density: float) -> None:
    """Refuse a density that keeps nothing, or more than everything.

    >>> check_density(1.5)
    Traceback (most recent call last):
    thinwire.errors.ConfigError: density is 1.5: the fraction kept must be ...
    """
    if not is_number(density, above=0.0, most=1.0):
        raise ConfigError(
            f"density is {density!r}: the fraction kept must be above 0 and at most 1, "
            "for example 0.01 to keep 1 %"
        )


def check_choice(name: str, value: object, literal: object) -> None:
    """Refuse a value that is not one of those of a `Literal` type."""
    choices = get_args(literal)
    # True == 1, and an array compares element by element.
    same = (value == each for each in choices if isinstance(value, type(each)))
    if isinstance(value, bool) or not any(same):
        raise ConfigError(
            f"{name} is {value!r}: choose {' or '.join(map(repr, choices))}"
        )


def check_whole(name: str, value: object, remedy: str, most: float = inf) -> None:
    """Refuse a value that is not an integer from 1 to `most`; bools are refused too.

    >>> check_whole("width", 2.5, "give the elements of a block")
    Traceback (most recent call last):
    thinwire.errors.ConfigError: width is 2.5: give the elements of a block
    """
    if not is_whole(value, least=1, most=most):
        raise ConfigError(f"{name} is {value!r}: {remedy}")


def packet_nbytes(codec: Codec | None, size: int, nnz: int) -> int:
    """The length of a packet; a `ConfigError` if it depends on the data."""
    nbytes = None if codec is None else codec.nbytes(size, nnz)
    if nbytes is None:
        raise ConfigError(
            f"the packets of {codec} depend on the data: their cost can be counted, "
            "not stated in advance"
        )
    return nbytes
