"""The contract of collectives: agree on a sum, keep what was not delivered."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

from torch import Tensor

from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.kernels import Marker
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

    `marker` is scratch: results never depend on it, so it is not part of a checkpoint.
    """

    marker: Marker | None = None


class Collective(Protocol):
    """A frozen dataclass of hyper-parameters; its state is the caller's.

    `all_reduce_` receives this rank's accumulated gradient `x` and changes it in place.
    On return `x` holds what was not delivered, and the total is the same, bit for bit,
    on every rank. Over all ranks: sum(x before) = total + sum(x after).
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

    def init(self, layout: Layout) -> State: ...

    def marker(self, state: State) -> Marker | None:
        """Where candidates are to be marked while the gradient is accumulated."""
        ...

    def all_reduce_(
        self, x: Tensor, channel: Channel, state: State, out: Room
    ) -> Total: ...

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The card, as code: what the busiest rank sends, and in how many rounds."""
        ...


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


def packet_nbytes(codec: Codec | None, size: int, nnz: int) -> int:
    """The length of a packet on a card, where the codec fixes it."""
    nbytes = None if codec is None else codec.nbytes(size, nnz)
    if nbytes is None:
        raise ConfigError(
            f"the packets of {codec} depend on the data: their cost can be counted, "
            "not stated in advance"
        )
    return nbytes
