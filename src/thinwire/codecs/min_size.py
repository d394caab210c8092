"""Small vectors raw: a codec that contains a codec.

DeepReduce sends tensors of up to 1000 elements as they are. Both ends know the size of
a vector, so nothing needs to be said on the wire.
"""

from dataclasses import dataclass, field

import torch

from thinwire.codecs.codec import Codec, Values
from thinwire.codecs.split import Split
from thinwire.errors import ConfigError
from thinwire.sparse import SparseVector
from thinwire.wire import Packet


@dataclass(frozen=True, slots=True)
class MinSize(Codec):
    """`codec` for vectors of at least `size` elements, `small` for others.

    Packets have a fixed length if those of both codecs have.

    >>> MinSize(1001, Split()).nbytes(size=1000, nnz=10)
    112
    """

    size: int
    codec: Codec
    small: Codec = field(default_factory=Split)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(
                f"size is {self.size}: give the number of elements from which a vector "
                "is coded, 0 or more"
            )

    def nbytes(self, size: int, nnz: int) -> int | None:
        # Ranks that swap vectors of different sizes must agree on whether lengths are
        # sent: if either codec needs it, all packets have one.
        if any(each.nbytes(0, 0) is None for each in (self.codec, self.small)):
            return None
        return self._for(size).nbytes(size, nnz)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        return self._for(vector.size).encode(vector, source=source, key=key)

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        return self._for(size).decode(packet, size, nnz, key=key)

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        return self._for(vector.size).adopt(packet, vector, key=key)

    def header(self, size: int, nnz: int) -> bytes | None:
        return self._for(size).header(size, nnz)

    def rounding(self, size: int) -> torch.dtype | None:
        return self._for(size).rounding(size)

    def _for(self, size: int) -> Codec:
        return self.codec if size >= self.size else self.small
