"""A codec that contains a codec and keeps its time."""

from dataclasses import dataclass, field
from time import perf_counter

import torch

from thinwire import kernels
from thinwire.codecs.codec import Codec, Values
from thinwire.sparse import SparseVector
from thinwire.wire import Packet


@dataclass(frozen=True, slots=True)
class Timed:
    """Adds the seconds of encoding and decoding to `stopwatch`, by name."""

    codec: Codec
    stopwatch: dict[str, float] = field(default_factory=dict, compare=False)

    def nbytes(self, size: int, nnz: int) -> int | None:
        return self.codec.nbytes(size, nnz)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        start = perf_counter()
        with kernels.timed_primitives({}):  # else its kernels would be counted twice
            packet = self.codec.encode(vector, source=source, key=key)
        self._add("encode", start)
        return packet

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        start = perf_counter()
        with kernels.timed_primitives({}):
            vector = self.codec.decode(packet, size, nnz, key=key)
        self._add("decode", start)
        return vector

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        start = perf_counter()
        with kernels.timed_primitives({}):
            adopted = self.codec.adopt(packet, vector, key=key)
        self._add("decode", start)
        return adopted

    def header(self, size: int, nnz: int) -> bytes | None:
        return self.codec.header(size, nnz)

    def rounding(self, size: int) -> torch.dtype | None:
        return self.codec.rounding(size)

    def _add(self, name: str, start: float) -> None:
        self.stopwatch[name] = self.stopwatch.get(name, 0.0) + perf_counter() - start
