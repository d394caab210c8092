"""The contracts of codecs: a sparse list to bytes and back."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.errors import WireError
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

Values = Callable[[Tensor], Tensor]
"""What the vector holds at indices beyond the list, for encoders that deliver more.

Where the list has an entry, that is the true value, whatever this says there.
"""


AnyOrder = Callable[[Tensor, int, int], Tensor]
"""A section, a size and a number of entries to indices in the order they were sent."""


class Codec(Protocol):
    """A pure function and its inverse, up to the error it states.

    Same arguments, same bytes, on every machine; but for `Deflate`, `Zstd` and
    `Huffman`, whose bytes depend on the release of zlib or zstd, though not what they
    decode to. A codec holds configuration and no state, so a frozen dataclass with its
    fields is all it is.
    """

    def nbytes(self, size: int, nnz: int) -> int | None:
        """The length of a packet; None where it depends on the data.

        A codec says None always or never: whether lengths travel ahead of packets is
        one question for all lists it is given.
        """
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

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        """What `decode` makes of the packet that this very list was encoded as.

        Where indices come back as they were, they are the same tensor.
        """
        ...

    def header(self, size: int, nnz: int) -> bytes | None:
        """What packets in device memory begin with; None if it depends on the data."""
        ...

    def rounding(self, size: int) -> torch.dtype | None:
        """The dtype that each value of a list over `size` elements is rounded to.

        None where something else becomes of a value, or of an index.
        """
        ...


class IndexCodec(Protocol):
    """Strictly increasing indices to bytes and back.

    Almost all give back what they were given. One that does not (a Bloom filter) says
    with `regathers` whether values are looked up anew for the indices that come back.
    """

    @property
    def tag(self) -> int:
        """Names the format on the wire, for ever."""
        ...

    @property
    def regathers(self) -> bool:
        """Whether other indices may come back, and want values of their own."""
        ...

    @property
    def any_order(self) -> AnyOrder | None:
        """For a format that keeps any order: what decodes it, and checks no order."""
        ...

    def nbytes(self, size: int, nnz: int) -> int | None:
        """The length of a section; None where it depends on the data."""
        ...

    def encode(self, indices: Tensor, size: int, *, key: int) -> Tensor: ...

    def decode(self, section: Tensor, size: int, nnz: int, *, key: int) -> Tensor:
        """The indices; checks their order and range, and raises `WireError`.

        `section` may be padded with zeros; `nnz` is how many were encoded.
        """
        ...


class ValueCodec(Protocol):
    """Float32 values to bytes and back, within a stated error.

    What a format cannot hold is brought to the nearest value it can; of a value that is
    not finite it may deliver nothing. The sender keeps the difference.
    """

    @property
    def tag(self) -> int:
        """Names the format on the wire, for ever."""
        ...

    @property
    def sorts(self) -> bool:
        """Whether values must come in descending order."""
        ...

    def nbytes(self, nnz: int) -> int | None:
        """The length of a section; None where it depends on the data."""
        ...

    def encode(self, values: Tensor, *, key: int) -> Tensor: ...

    def decode(self, section: Tensor, nnz: int, *, key: int) -> Tensor:
        """The values, float32; raises `WireError` where a section cannot be right."""
        ...


def taken(what: str, section: Tensor, nbytes: int) -> Tensor:
    """The `nbytes` bytes that a section must have, apart from its padding."""
    with checked(what):
        kernels.check_length(section, 8 * nbytes)
    return section[:nbytes]


class checked:  # noqa: N801 - it reads as a function
    """Report what a kernel finds wrong with received bytes as a `WireError`."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ValueError):
            raise WireError(f"{self._what}: {error}") from error
