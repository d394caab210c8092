"""Indices by one codec, values by another: 32 bytes of header and both sections.

The decomposition is DeepReduce's (Xu et al., NeurIPS 2021, section 3).
"""

from dataclasses import dataclass, field

from thinwire.codecs.codec import IndexCodec, ValueCodec, Values
from thinwire.codecs.float32 import Float32
from thinwire.codecs.int32 import Int32
from thinwire.errors import WireError
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER, Packet, padded


@dataclass(frozen=True, slots=True)
class Split:
    """A codec made of two; by default raw, 64 bits per entry and no error.

    >>> codec = Split()
    >>> packet = codec.encode(SparseVector.of({3: 1.5, 8: -2.0}, size=10))
    >>> packet.body.numel() == codec.nbytes(size=10, nnz=2)
    True
    >>> codec.decode(packet, size=10).to_dict()
    {3: 1.5, 8: -2.0}
    """

    index: IndexCodec = field(default_factory=Int32)
    value: ValueCodec = field(default_factory=Float32)

    def nbytes(self, size: int, nnz: int) -> int | None:
        index, value = self.index.nbytes(size, nnz), self.value.nbytes(nnz)
        if index is None or value is None:
            return None
        return HEADER.size + padded(index) + padded(value)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        del source
        sections = (
            self.index.encode(vector.indices, vector.size),
            self.value.encode(vector.values, key=key),
        )
        tags = self.index.tag, self.value.tag
        return Packet.build(tags, vector.size, vector.nnz, sections)

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        self._check(packet, size, nnz)
        index, value = packet.sections
        return SparseVector(
            self.index.decode(index, size, packet.nnz),
            self.value.decode(value, packet.nnz, key=key),
            size,
        )

    def _check(self, packet: Packet, size: int, nnz: int | None) -> None:
        tags = self.index.tag, self.value.tag
        if packet.tags != tags:
            raise WireError(
                f"a packet with codec tags {packet.tags} where {tags} ({self}) was "
                "agreed; give every rank the same codec"
            )
        if packet.size != size:
            raise WireError(f"a packet for a vector of {packet.size}, not {size}")
        if nnz is not None and packet.nnz != nnz:
            raise WireError(f"a packet lists {packet.nnz} entries, not {nnz}")
        nbytes = self.nbytes(size, packet.nnz)
        if nbytes is not None and nbytes != packet.body.numel():
            raise WireError(
                f"a packet of {packet.body.numel()} bytes where {packet.nnz} entries "
                f"take {nbytes}"
            )
