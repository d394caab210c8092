"""The contracts of codecs: a sparse list to bytes and back."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from thinwire.sparse import SparseVector
from thinwire.wire import Packet

Values = Callable[[Tensor], Tensor]
"""The true values at these indices, for encoders that deliver more than the list."""


class Codec(Protocol):
    """A pure function and its inverse, up to the error it states.

    Same arguments, same bytes, on every machine. A codec holds configuration and no
    state, so a frozen dataclass with its fields is all it is.
    """

    def nbytes(self, size: int, nnz: int) -> int | None:
        """The length of a packet; None where it depends on the data."""
        ...

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        """The list as bytes. `key` seeds whatever is random, alike on all ranks."""
        ...

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        """The list that these bytes stand for, or a `WireError`.

        `size` and, where known, `nnz` are what the receiver expects; `key` is the one
        the list was encoded with.
        """
        ...


class IndexCodec(Protocol):
    """Strictly increasing indices to bytes and back, exactly."""

    @property
    def tag(self) -> int:
        """Names the format on the wire, for ever."""
        ...

    def nbytes(self, size: int, nnz: int) -> int | None: ...

    def encode(self, indices: Tensor, size: int) -> Tensor: ...

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        """The indices; checks their order and range, and raises `WireError`."""
        ...


class ValueCodec(Protocol):
    """Float32 values to bytes and back, within a stated error."""

    @property
    def tag(self) -> int:
        """Names the format on the wire, for ever."""
        ...

    def nbytes(self, nnz: int) -> int | None: ...

    def encode(self, values: Tensor, *, key: int) -> Tensor: ...

    def decode(self, section: Tensor, nnz: int, *, key: int) -> Tensor: ...
