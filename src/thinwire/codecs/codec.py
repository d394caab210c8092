"""The base classes of codecs: a sparse list to bytes and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.errors import WireError
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

Values = Callable[[Tensor], Tensor]
"""Maps indices beyond the list to the vector's values there.

For encoders that deliver more entries than the list has. Values of the list's own
entries come from the list.
"""


class Codec(ABC):
    """A pure function from a sparse list to a packet, and its inverse.

    The same arguments give the same bytes on every machine, except for `Deflate`,
    `Zstd` and `Huffman`: their bytes depend on the release of zlib or zstd, what they
    decode to does not. A codec is a frozen dataclass of its configuration and has no
    state. Any thread may call it.
    """

    __slots__ = ()

    @abstractmethod
    def nbytes(self, size: int, nnz: int) -> int | None:
        """The length of a packet; None if it depends on the data.

        A codec returns None always or never: either all its packets are preceded by
        their length or none is.
        """

    @abstractmethod
    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        """The list as bytes. `key` seeds random choices; it is equal on all ranks."""

    @abstractmethod
    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        """The list that these bytes encode; raises `WireError` if they are invalid.

        `size` and, where known, `nnz` are what the receiver expects. `key` is the one
        that the list was encoded with. Values that are not finite are refused if the
        packet says so.
        """

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        """What `decode` returns for a packet that was encoded from `vector`.

        Indices that encoding does not change are returned as the same tensor.
        """
        return self.decode(packet, vector.size, key=key)

    def header(self, size: int, nnz: int) -> bytes | None:
        """What packets in device memory begin with; None if it depends on the data."""
        del size, nnz
        return None

    def rounding(self, size: int) -> torch.dtype | None:
        """The dtype that values of a list over `size` elements are rounded to.

        None if encoding changes values in another way, or changes indices.
        """
        del size
        return None


class CodecWrapper(Codec):
    """A codec that forwards to another one what a subclass does not override."""

    __slots__ = ()

    codec: Codec

    def nbytes(self, size: int, nnz: int) -> int | None:
        return self.codec.nbytes(size, nnz)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        return self.codec.encode(vector, source=source, key=key)

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        return self.codec.decode(packet, size, nnz, key=key)

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        return self.codec.adopt(packet, vector, key=key)

    def header(self, size: int, nnz: int) -> bytes | None:
        return self.codec.header(size, nnz)

    def rounding(self, size: int) -> torch.dtype | None:
        return self.codec.rounding(size)


class _Section(ABC):
    __slots__ = ()

    @property
    @abstractmethod
    def tag(self) -> int:
        """Identifies the format on the wire. It never changes."""

    def with_key(self, key: int) -> Self:
        """This codec with a seed for random choices: itself if it makes none."""
        del key
        return self


class IndexCodec(_Section):
    """Strictly increasing indices to bytes and back."""

    __slots__ = ()

    regathers = False
    """Whether `decode` may return other indices, which need values of their own."""

    keeps_order = False
    """Whether `decode_unordered` can read indices that are in any order."""

    def nbytes(self, size: int, nnz: int) -> int | None:
        """The length of a section; None if it depends on the data."""
        del size, nnz
        return None

    @abstractmethod
    def encode(self, indices: Tensor, size: int) -> Tensor: ...

    @abstractmethod
    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        """The indices; raises `WireError` unless they are in order and in range.

        `section` may be padded with zeros; `nnz` is how many were encoded.
        """

    def decode_deferring(
        self, section: Tensor, size: int, nnz: int, errors: Tensor | None
    ) -> Tensor:
        """`decode`, but a section on a device may set the flag instead of raising."""
        del errors
        return self.decode(section, size, nnz)

    def decode_unordered(self, section: Tensor, size: int, nnz: int) -> Tensor:
        """The indices in the order they were sent, unchecked, if it `keeps_order`."""
        raise NotImplementedError


class ValueCodec(_Section):
    """Float32 values to bytes and back, within a stated error.

    A value that the format cannot hold is clamped to the nearest one it can; of a
    value that is not finite nothing may be delivered. The sender keeps the difference.
    """

    __slots__ = ()

    sorts = False
    """Whether `encode` needs values in descending order."""

    always_finite = False
    """Whether `decode` refuses, or cannot yield, a value that is not finite."""

    def nbytes(self, nnz: int) -> int | None:
        """The length of a section; None if it depends on the data."""
        del nnz
        return None

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor: ...

    @abstractmethod
    def decode(self, section: Tensor, nnz: int) -> Tensor:
        """The values, float32; raises `WireError` if the section is invalid."""

    def decode_deferring(
        self, section: Tensor, nnz: int, errors: Tensor | None
    ) -> Tensor:
        """`decode`, but a section on a device may set the flag instead of raising."""
        del errors
        return self.decode(section, nnz)


def unpadded(what: str, section: Tensor, nbytes: int) -> Tensor:
    """The first `nbytes` of a section; `WireError` if it is not that long."""
    with checked(what):
        kernels.check_length(section, 8 * nbytes)
    return section[:nbytes]


class checked:  # noqa: N801 - it reads as a function
    """Turn the `ValueError` of a kernel about received bytes into a `WireError`."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ValueError):
            raise WireError(f"{self._what}: {error}") from error
