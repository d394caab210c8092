"""Indices by one codec, values by another: 32 bytes of header and both sections.

The decomposition is DeepReduce's (Xu et al., NeurIPS 2021, section 3). A value codec
may sort: where the index codec keeps any order, indices travel in the order of the
values; else the value section begins with the permutation.
"""

import sys
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.bfloat16 import BFloat16
from thinwire.codecs.bloom import Bloom
from thinwire.codecs.codec import Codec, IndexCodec, ValueCodec, Values, checked
from thinwire.codecs.elias_fano import EliasFano, low_bits_unless_bitmap
from thinwire.codecs.float32 import Float32
from thinwire.codecs.int32 import Int32
from thinwire.codecs.order import decode_map, descending, encode_map, map_nbytes
from thinwire.errors import ConfigError, WireError
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER, Packet, header_of, padded, sum_up_

_ROUNDING: dict[type, torch.dtype] = {Float32: torch.float32, BFloat16: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Split(Codec):
    """A codec made of two; by default raw, 64 bits per entry and no error.

    With `checksum`, packets carry one and packets without one are refused. Packets in
    device memory have none.

    >>> codec = Split()
    >>> packet = codec.encode(SparseVector.of({3: 1.5, 8: -2.0}, size=10))
    >>> packet.body.numel() == codec.nbytes(size=10, nnz=2)
    True
    >>> codec.decode(packet, size=10).to_dict()
    {3: 1.5, 8: -2.0}
    """

    index: IndexCodec = field(default_factory=Int32)
    value: ValueCodec = field(default_factory=Float32)
    checksum: bool = True

    def __post_init__(self) -> None:
        # Every list that becomes bytes, or is read from them, passes here.
        if sys.byteorder != "little":
            raise ConfigError(
                "packets are little endian and written as numbers lie in memory: this "
                f"machine's are {sys.byteorder} endian"
            )

    def nbytes(self, size: int, nnz: int) -> int | None:
        if self._usual:
            return _usual_nbytes(size, nnz)
        index, value = self.index.nbytes(size, nnz), self.value.nbytes(nnz)
        if index is None or value is None:
            return None
        order = map_nbytes(nnz) if self._maps else 0
        return HEADER.size + padded(index) + order + padded(value)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        if self._usual:
            return self._encode_at_once(vector)
        size, indices, values = vector.size, vector.indices, vector.values
        if self.value.sorts and not self._maps:
            order = descending(values)
            indices, values = indices[order], values[order]
        codec = self.index.with_key(key)
        index = codec.encode(indices, size)
        if codec.regathers:
            received = codec.decode(index, size, vector.nnz)
            values = _true_values(vector, received, source)
        value = self._encode_values(values, key)
        return Packet.build(
            (self.index.tag, self.value.tag),
            size,
            vector.nnz,
            (index, value),
            checksum=self.checksum,
        )

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        self._check(packet, size, nnz)
        if self._usual:
            return self._decode_at_once(packet)
        vector = self._decode_by_section(packet, key)
        open_ = packet.finite and not self.value.always_finite
        if open_ and not kernels.all_finite(vector.values, errors=packet.errors):
            name = type(self.value).__name__
            raise WireError(f"{name}: a value that is not finite")
        return vector

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        if type(self.index) is Bloom or self.value.sorts:
            return self.decode(packet, vector.size, key=key)
        _, section = packet.sections
        values = self.value.decode_deferring(section, vector.nnz, packet.errors)
        return SparseVector(vector.indices, values, vector.size)

    def header(self, size: int, nnz: int) -> bytes | None:
        index, value = self.index.nbytes(size, nnz), self.value.nbytes(nnz)
        if index is None or value is None:
            return None
        order = map_nbytes(nnz) if self._maps else 0
        tags = self.index.tag, self.value.tag
        return header_of(tags, size, nnz, (index, order + value))

    def rounding(self, size: int) -> torch.dtype | None:
        del size
        exact = type(self.index) is not Bloom
        return _ROUNDING.get(type(self.value)) if exact else None

    @property
    def _maps(self) -> bool:
        return self.value.sorts and not self.index.keeps_order

    @property
    def _usual(self) -> bool:
        return type(self.index) is EliasFano and type(self.value) is BFloat16

    def _encode_at_once(self, vector: SparseVector) -> Packet:
        """The usual codecs' packet, by one launch, or one call, instead of many."""
        size, nnz, device = vector.size, vector.nnz, vector.indices.device
        tags, index = (self.index.tag, self.value.tag), EliasFano().nbytes(size, nnz)
        summed = self.checksum and vector.indices.is_cpu
        lengths = index, BFloat16().nbytes(nnz)
        header = header_of(tags, size, nnz, lengths, summed=summed)
        body = kernels.encode_packet(
            kernels.on_device(header, device),
            vector.indices,
            vector.values,
            size,
            low_bits_unless_bitmap(size, nnz),
        )
        if summed:
            sum_up_(body)
        return Packet(tags, size, nnz, padded(index), body, summed)

    def _decode_at_once(self, packet: Packet) -> SparseVector:
        """Both sections of the usual codecs' packet, whose length is right."""
        size, nnz = packet.size, packet.nnz
        index = padded(EliasFano().nbytes(size, nnz))
        if packet.index_nbytes != index:
            raise WireError(
                f"Elias-Fano: {packet.index_nbytes} bytes where {index} are expected"
            )
        low = low_bits_unless_bitmap(size, nnz)
        with checked("Elias-Fano and BFloat16"):
            indices, values = kernels.decode_packet(
                packet.body,
                HEADER.size,
                size,
                nnz,
                low=low,
                errors=packet.errors,
                finite=packet.finite,
            )
        return SparseVector(indices, values, size)

    def _decode_by_section(self, packet: Packet, key: int) -> SparseVector:
        if self.value.sorts and self.index.keeps_order:
            return self._decode_in_order_of_values(packet)
        index, value = packet.sections
        if self.index.regathers:
            indices = self._decode_indices(packet, index, key)
            values = self._decode_values(packet, value, len(indices))
        else:
            # Values first, because their section must be as long as their number says:
            # two run lengths in a few bytes may decode to any number of indices.
            values = self._decode_values(packet, value, packet.nnz)
            indices = self._decode_indices(packet, index, key)
        return SparseVector(indices, values, packet.size)

    def _encode_values(self, values: Tensor, key: int) -> Tensor:
        codec = self.value.with_key(key)
        if not self._maps:
            return codec.encode(values)
        order = descending(values)
        places = encode_map(order)
        gap = places.new_zeros(map_nbytes(len(order)) - places.numel())
        return torch.cat([places, gap, codec.encode(values[order])])

    def _decode_indices(self, packet: Packet, section: Tensor, key: int) -> Tensor:
        size, nnz, codec = packet.size, packet.nnz, self.index.with_key(key)
        indices = codec.decode_deferring(section, size, nnz, packet.errors)
        _check_padding(codec, section, codec.nbytes(size, nnz))
        return indices

    def _decode_values(self, packet: Packet, section: Tensor, nnz: int) -> Tensor:
        if not self._maps:
            return self._decode_section(section, nnz, packet.errors)
        length = map_nbytes(nnz)
        if section.numel() < length:
            raise WireError(f"the order of {nnz} values in {section.numel()} bytes")
        order = decode_map(section[:length], nnz)
        values = self._decode_section(section[length:], nnz, packet.errors)
        return torch.empty_like(values).scatter_(0, order, values)

    def _decode_section(
        self, section: Tensor, nnz: int, errors: Tensor | None
    ) -> Tensor:
        values = self.value.decode_deferring(section, nnz, errors)
        _check_padding(self.value, section, self.value.nbytes(nnz))
        return values

    def _decode_in_order_of_values(self, packet: Packet) -> SparseVector:
        index, value = packet.sections
        size, nnz = packet.size, packet.nnz
        unordered = self.index.decode_unordered(index, size, nnz)
        indices, order = torch.sort(unordered)
        if not kernels.strictly_increasing(indices, size, errors=packet.errors):
            raise WireError(f"indices that are not each once below {size}")
        _check_padding(self.index, index, self.index.nbytes(size, nnz))
        values = self._decode_section(value, nnz, packet.errors)[order]
        return SparseVector(indices, values, size)

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
        if self.checksum and not packet.summed and packet.body.device.type == "cpu":
            raise WireError("a packet without the checksum that was agreed")
        with checked("a packet"):  # of more entries, perhaps, than a codec takes
            nbytes = self.nbytes(size, packet.nnz)
        if nbytes is not None and nbytes != packet.body.numel():
            raise WireError(
                f"a packet of {packet.body.numel()} bytes where {packet.nnz} entries "
                f"take {nbytes}"
            )


@lru_cache(maxsize=1024)
def _usual_nbytes(size: int, nnz: int) -> int:
    sections = EliasFano().nbytes(size, nnz), BFloat16().nbytes(nnz)
    return HEADER.size + sum(map(padded, sections))


def _check_padding(
    codec: IndexCodec | ValueCodec, section: Tensor, nbytes: int | None
) -> None:
    """Refuse anything but zeros after a section's end, where that is known.

    Not checked in device memory, as the checksum is not: it would have to be fetched.
    """
    if nbytes is None or nbytes == section.numel() or not section.is_cpu:
        return
    if section.numpy()[nbytes:].tobytes().strip(b"\0"):
        name = type(codec).__name__
        raise WireError(f"{name}: bits that are set after the end")


def _true_values(
    vector: SparseVector, received: Tensor, source: Values | None
) -> Tensor:
    """The vector's values at the indices that a receiver decodes."""
    others = (
        vector.values.new_zeros(len(received)) if source is None else source(received)
    )
    return kernels.look_up(vector.indices, vector.values, received, others)
