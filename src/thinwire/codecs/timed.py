"""A codec that contains a codec and measures its time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from thinwire import kernels
from thinwire.codecs.codec import Codec, CodecWrapper, Values
from thinwire.sparse import SparseVector
from thinwire.wire import Packet


@dataclass(frozen=True, slots=True)
class Timed(CodecWrapper):
    """Adds the seconds of encoding and decoding to `stopwatch`, by name."""

    codec: Codec
    stopwatch: dict[str, float] = field(default_factory=dict, compare=False)

    def encode(
        self, vector: SparseVector, *, source: Values | None = None, key: int = 0
    ) -> Packet:
        with self._timed("encode"):
            return self.codec.encode(vector, source=source, key=key)

    def decode(
        self, packet: Packet, size: int, nnz: int | None = None, *, key: int = 0
    ) -> SparseVector:
        with self._timed("decode"):
            return self.codec.decode(packet, size, nnz, key=key)

    def adopt(
        self, packet: Packet, vector: SparseVector, *, key: int = 0
    ) -> SparseVector:
        with self._timed("decode"):
            return self.codec.adopt(packet, vector, key=key)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = perf_counter()
        with kernels.timed_primitives({}):  # a codec's kernels are counted once, here
            yield
        seconds = perf_counter() - start
        self.stopwatch[name] = self.stopwatch.get(name, 0.0) + seconds
