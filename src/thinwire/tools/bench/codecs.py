"""Measurements of codecs on a list: bits, nanoseconds, error, recall; verified.

Times are per entry, and of the processor: the one thread that works, while it does.
Other work on the machine is not counted, but makes it slower. A call runs once
unclocked, then for a while.
"""

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from math import lgamma, log
from statistics import median
from time import thread_time
from typing import TypeVar

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs import Bloom, Deflate, Float32, Split, Values, Zstd
from thinwire.sparse import SparseVector, keep_count
from thinwire.wire import Packet

T = TypeVar("T")
Section = TypeVar("Section", bound=Sized)

SECONDS = 0.2
_MOST_RUNS = 50
_EXACT_VALUES = (Float32, Deflate, Zstd)


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds per entry: the median of several runs, the least and the most."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Half:
    """Bits per entry of indices or of values alone, and what they take."""

    bits: float
    encode: Times
    decode: Times


@dataclass(frozen=True, slots=True)
class Measured:
    """Bits per entry of a packet, what it takes, and what is left of the list.

    `error` is that of the values at the indices that come back, relative to their L2
    norm; `recall` the share of the listed indices among these.
    """

    index_bits: float
    value_bits: float
    packet_bits: float  # with the header
    encode: Times
    decode: Times
    error: float
    recall: float


def bound(size: int, nnz: int) -> float:
    """The fewest bits per index that can tell every list of `nnz` from the others.

    >>> round(bound(16, 5), 2)  # log2(16 choose 5) / 5
    2.42
    """
    if not nnz:
        return 0.0
    ways = lgamma(size + 1) - lgamma(nnz + 1) - lgamma(size - nnz + 1)
    return ways / log(2) / nnz


def largest(vector: Tensor, density: float) -> SparseVector:
    """The part of a dense vector that a density keeps, exactly.

    >>> largest(torch.tensor([1.0, -3.0, 0.0, 2.0]), 0.5).to_dict()
    {1: -3.0, 3: 2.0}
    """
    size = vector.numel()
    chosen = kernels.select(vector, keep_count(size, density))
    return SparseVector(*chosen, size)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on a single thread, as the kernels are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def clocked(
    call: Callable[[], T], entries: int, *, seconds: float = SECONDS
) -> tuple[Times, T]:
    """The times of a call, and its result."""
    result = call()
    runs: list[float] = []
    while not runs or (sum(runs) < seconds and len(runs) < _MOST_RUNS):
        start = thread_time()
        result = call()
        runs.append(thread_time() - start)
    scaled = [1e9 * run / entries for run in runs]
    return Times(median(scaled), min(scaled), max(scaled)), result


def measure_half(
    encode: Callable[[], Section],
    decode: Callable[[Section], T],
    entries: int,
    *,
    seconds: float = SECONDS,
) -> tuple[Half, T]:
    """An index codec or a value codec by itself, and what it decodes to.

    A section is anything whose `len` is its number of bytes.
    """
    encoding, section = clocked(encode, entries, seconds=seconds)
    decoding, read = clocked(lambda: decode(section), entries, seconds=seconds)
    return Half(8 * len(section) / entries, encoding, decoding), read


def measure(
    codec: Split,
    vector: SparseVector,
    truth: Values | None = None,
    *,
    seconds: float = SECONDS,
) -> Measured:
    """A codec on a list that is not empty; `truth` is what the whole vector holds.

    Raises `RuntimeError` if the list does not come back as it should: every bit of what
    the codec keeps exactly, and whatever it is, what the reference decodes to.
    """
    if truth is None:
        truth = _listed(vector)
    entries, size = vector.nnz, vector.size
    encode, packet = clocked(
        lambda: codec.encode(vector, source=truth), entries, seconds=seconds
    )
    decode, read = clocked(
        lambda: codec.decode(Packet.parse(packet.body), size), entries, seconds=seconds
    )
    _verify(codec, vector, packet, read)
    index, value = packet.sections
    return Measured(
        index_bits=8 * len(index) / entries,
        value_bits=8 * len(value) / entries,
        packet_bits=8 * len(packet.body) / entries,
        encode=encode,
        decode=decode,
        error=relative_error(read.values, truth(read.indices)),
        recall=recall(read.indices, vector.indices),
    )


def relative_error(read: Tensor, truth: Tensor) -> float:
    """|read - truth| / |truth|, in L2 norms.

    >>> relative_error(torch.tensor([3.0, 3.0]), torch.tensor([3.0, 4.0]))
    0.2
    """
    truth = truth.double()
    apart = float((read.double() - truth).norm())
    return apart / float(truth.norm()) if apart else 0.0


def recall(found: Tensor, wanted: Tensor) -> float:
    """The share of the wanted indices among those found, both ascending.

    >>> recall(torch.tensor([1, 2, 5]), torch.tensor([2, 3]))
    0.5
    """
    if torch.equal(found, wanted):
        return 1.0
    places = torch.searchsorted(found, wanted).clamp_(max=len(found) - 1)
    return float((found[places] == wanted).double().mean())


def _listed(vector: SparseVector) -> Values:
    dense = vector.to_dense()
    return lambda indices: kernels.gather(dense, indices)


def _verify(
    codec: Split, vector: SparseVector, packet: Packet, read: SparseVector
) -> None:
    exact = not isinstance(codec.index, Bloom)
    same = not exact or torch.equal(read.indices, vector.indices)
    if exact and isinstance(codec.value, _EXACT_VALUES):
        same &= torch.equal(_bits(read.values), _bits(vector.values))
    if same and exact:  # the reference asks a filter for every element: too slow
        with kernels.by_reference():
            plain = codec.decode(packet, vector.size)
        same = torch.equal(_bits(read.values), _bits(plain.values))
    if not same or len(read.values) != len(read.indices):
        raise RuntimeError(f"{codec} does not give back what it should")


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.int32)
