"""Index codecs and value codecs by themselves, and what NumPy and zlib offer."""

import zlib
from collections.abc import Callable, Iterator, Sized
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.catalog import INDEX_CODECS
from thinwire.codecs import Bloom, IndexCodec, ValueCodec
from thinwire.tools.bench.codecs import Half, measure_half, recall, relative_error

SECONDS = 0.1
EXACT = [name for name, index in INDEX_CODECS.items() if not isinstance(index, Bloom)]

Numbers = NDArray[np.int32]


class Peer(NamedTuple):
    """What a user would reach for."""

    encode: Callable[[Numbers, int], Sized]
    decode: Callable[[Sized, int], NDArray[np.integer]]


def packed(indices: Numbers, size: int) -> Sized:
    chosen = np.zeros(size, bool)
    chosen[indices] = True
    return np.packbits(chosen)


PEERS = {
    "np.packbits": Peer(packed, lambda s, n: np.flatnonzero(np.unpackbits(s, count=n))),
    "zlib of int32": Peer(
        lambda i, _: zlib.compress(i.tobytes()),
        lambda s, _: np.frombuffer(zlib.decompress(s), np.int32),
    ),
    "zlib of np.diff": Peer(
        lambda i, _: zlib.compress(np.diff(i, prepend=np.int32(0)).tobytes()),
        lambda s, _: np.frombuffer(zlib.decompress(s), np.int32).cumsum(),
    ),
}


def index_halves(
    indices: Tensor, size: int, *, filters: bool
) -> Iterator[tuple[str, Half, float]]:
    """Name, figures and recall of every index codec, and of what is beside them."""
    nnz = len(indices)
    for name in EXACT:
        half, read = index_half(INDEX_CODECS[name], indices, size)
        assert torch.equal(read, indices), name
        yield name, half, 1.0
    numbers = indices.numpy()
    for name, (encode, decode) in PEERS.items():
        half, found = measure_half(
            lambda encode=encode: encode(numbers, size),
            lambda section, decode=decode: decode(section, size),
            nnz,
            seconds=SECONDS,
        )
        assert np.array_equal(found, numbers), name
        yield name, half, 1.0
    if filters:
        half, read = index_half(Bloom("p2"), indices, size, seconds=0)
        yield "bloom-p2", half, recall(read, indices)


def index_half(
    index: IndexCodec, indices: Tensor, size: int, seconds: float = SECONDS
) -> tuple[Half, Tensor]:
    return measure_half(
        lambda: index.encode(indices, size),
        lambda section: index.decode(section, size, len(indices)),
        len(indices),
        seconds=seconds,
    )


def value_half(value: ValueCodec, values: Tensor) -> tuple[Half, Tensor]:
    return measure_half(
        lambda: value.encode(values),
        lambda section: value.decode(section, len(values)),
        len(values),
        seconds=SECONDS,
    )


def value_error(value: ValueCodec, values: Tensor) -> float:
    section = value.encode(values)
    return relative_error(value.decode(section, len(values)), values)
