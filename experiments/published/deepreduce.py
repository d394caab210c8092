"""DeepReduce's figures (arXiv:2102.03112), and ours at the same points.

Volumes are shares of the dense vector's bytes, without our packet's header of 32 bytes,
as the published ones have none. Values follow Laplace's law, supports are uniform.

The iteration of NCF (figure 19: 31.8 M elements, 4 ranks, top 10 %) is .98 s to compute
as published, then ours: a list encoded and four decoded by one thread, per entry as for
2**20 elements, and three packets on the wire. Selection is not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from thinwire import catalog
from thinwire.codecs import MinSize, Split
from thinwire.cost import Link, ring_all_reduce
from thinwire.sparse import SparseVector
from thinwire.tools.bench.codecs import Measured, largest, measure
from thinwire.wire import HEADER


@dataclass(frozen=True)
class Codec:
    """A published combination by our name, its volume, and ms to encode and decode."""

    name: str
    volume: float | None = None
    milliseconds: tuple[float, float] | None = None

    def with_rate(self, fpr: float | None) -> Split:
        """The codec, its filter, if it has one, of this rate of false positives."""
        index, _, value = self.name.partition("+")
        rate = fpr if index.startswith("bloom") else None
        codec = catalog.deepreduce(index, value, rate)
        assert isinstance(codec, MinSize)
        assert isinstance(codec.codec, Split)
        return codec.codec


@dataclass(frozen=True)
class Setting:
    """A vector and what was published for it; `dense` of it is sent as it is."""

    name: str
    size: int
    density: float
    codecs: tuple[Codec, ...]
    fpr: float | None = None
    dense: float = 0.0
    zeros: bool = False  # the vector's elements that are not listed are zeros


LAYER = Setting(
    "one layer, 36,864 at 1 %",
    36_864,
    0.01,
    (
        Codec("int32+float32", 0.0200),
        Codec("huffman+float32", 0.0162, (117, 135)),
        Codec("run-length+float32", 0.0159, (350, 6.9)),
        Codec("bloom-p2+float32", 0.0145, (3.97, 2.38)),
        Codec("int32+deflate", 0.0190, (1.09, 3.25)),
        Codec("int32+qsgd", 0.0125, (0.89, 0.70)),
        Codec("int32+fit-poly", 0.0117, (2.32, 1.71)),
        Codec("int32+fit-dexp", 0.0102, (10.9, 2.97)),
        Codec("bloom-p2+fit-dexp", 0.0075, (15.4, 5.24)),
        Codec("bloom-p2+qsgd", 0.0070, (4.98, 2.87)),
        Codec("rice+log4"),
        Codec("rice+tiers2"),
        Codec("rice+tiers8"),
    ),
    fpr=0.001,
)
RESNET20 = Setting(
    "ResNet-20 at 1 %",
    269_722,
    0.01,
    (Codec("bloom-p0+float32", 0.0158), Codec("bloom-p2+float32", 0.0147)),
    fpr=0.001,
)
# Of the LSTM's 4,053,428 parameters 0.41 % are in vectors, which are sent as they are.
FEDERATED = Setting(
    "federated LSTM at 10 %, a tenth of its size",
    405_342,
    0.1,
    (
        Codec("int32+float32", 0.2033),
        Codec("bloom-p0+float32", 0.1425),
        Codec("int32+fit-poly", 0.1039),
        Codec("bloom-p0+qsgd", 0.0621),
        Codec("rice+tiers2"),
        Codec("rice+tiers8"),
    ),
    dense=0.0041,
)
# Some 40 % of NCF's gradient are zeros; the rest is sent.
NCF = Setting(
    "NCF's gradient, 60 % not zero",
    2**20,
    0.6,
    (
        Codec("bloom-p0+qsgd", 0.2063),
        Codec("bitmap+qsgd"),
        Codec("bitmap+tiers2"),
        Codec("bitmap+tiers8"),
    ),
    fpr=0.6,
    zeros=True,
)
SETTINGS = (LAYER, RESNET20, FEDERATED, NCF)
SKCOMPRESS = {LAYER.name: 0.0034, NCF.name: 0.2175}

NCF_SIZE, NCF_RANKS, NCF_COMPUTE = 31_832_577, 4, 0.98
LINKS = (Link(436e-6, 12.5e6), Link(436e-6, 125e6))
# Seconds of an iteration at 100 Mbit/s and 1 Gbit/s.
ITERATIONS = {
    "dense": (17.9, 2.72),
    "int32+float32": (8.13, 2.07),
    "int32+fit-poly": (5.47, 2.42),
    "bloom-p2+float32": (6.01, 2.09),
    "bloom-p2+fit-poly": (5.66, 2.82),
    "elias-fano+bfloat16": None,
    "rice+tiers8": None,
}


@cache
def vector_of(setting: Setting) -> SparseVector:
    generator = torch.Generator().manual_seed(3)
    values = torch.empty(setting.size).exponential_(generator=generator)
    values *= (torch.rand(setting.size, generator=generator) - 0.5).sign()
    if setting.zeros:
        values *= torch.rand(setting.size, generator=generator) < setting.density
        indices = values.nonzero().view(-1).int()
        return SparseVector(indices, values[indices.long()], setting.size)
    return largest(values, setting.density)


@cache
def measured(setting: Setting, codec: Codec, seconds: float = 0.05) -> Measured:
    """Our codec on the setting's list, verified."""
    return measure(codec.with_rate(setting.fpr), vector_of(setting), seconds=seconds)


def volume(setting: Setting, codec: Codec) -> float:
    """The share of the dense vector's bytes."""
    vector = vector_of(setting)
    dense = vector.to_dense()
    packet = codec.with_rate(setting.fpr).encode(
        vector, source=lambda indices: dense[indices.long()]
    )
    nbytes = packet.body.numel() - HEADER.size
    return (1 - setting.dense) * nbytes / (4 * setting.size) + setting.dense


def volume_table() -> Iterator[list[str]]:
    yield ["vector", "codec", "published, %", "ours, %", "ratio", "error, %"]
    for setting in SETTINGS:
        for codec in setting.codecs:
            ours, theirs = volume(setting, codec), codec.volume
            yield [
                setting.name,
                f"`{codec.name}`",
                "-" if theirs is None else f"{100 * theirs:.2f}",
                f"{100 * ours:.3f}",
                "-" if theirs is None else f"{ours / theirs:.3f}",
                f"{100 * measured(setting, codec).error:.1f}",
            ]
        if setting.name in SKCOMPRESS:
            theirs = SKCOMPRESS[setting.name]
            yield [setting.name, "SKCompress", f"{100 * theirs:.2f}", "-", "-", "-"]


def time_table() -> Iterator[list[str]]:
    yield ["codec", "published encode + decode, ms", "ours, ms"]
    nnz = vector_of(LAYER).nnz
    for codec in LAYER.codecs:
        found = measured(LAYER, codec)
        ours = [nnz * each.median / 1e6 for each in (found.encode, found.decode)]
        theirs = codec.milliseconds
        yield [
            f"`{codec.name}`",
            "-" if theirs is None else " + ".join(f"{ms:g}" for ms in theirs),
            " + ".join(f"{ms:.3f}" for ms in ours),
        ]


def iteration(name: str, link: Link) -> float:
    """Our seconds of an iteration of NCF."""
    others = NCF_RANKS - 1
    if name == "dense":
        return NCF_COMPUTE + link.seconds(ring_all_reduce(4 * NCF_SIZE, NCF_RANKS))
    setting = Setting("NCF at 10 %", 2**20, 0.1, ())
    found = measured(setting, Codec(name))
    nnz = NCF_SIZE // 10
    coding = 1e-9 * nnz * (found.encode.median + NCF_RANKS * found.decode.median)
    nbytes = HEADER.size + nnz * (found.index_bits + found.value_bits) / 8
    wire = others * (link.latency + nbytes / link.bandwidth)
    return NCF_COMPUTE + coding + wire


def iteration_table() -> Iterator[list[str]]:
    yield [
        "codec",
        *(f"{rate}, {who}" for rate in ("100 Mbit/s", "1 Gbit/s") for who in _WHO),
    ]
    for name, published in ITERATIONS.items():
        cells = []
        for at, link in enumerate(LINKS):
            cells.append("-" if published is None else f"{published[at]:g}")
            cells.append(f"{iteration(name, link):.2f}")
        yield [f"`{name}`", *cells]


_WHO = ("published", "ours")
TABLES = (
    ("DeepReduce's volumes, in % of the dense vector", volume_table),
    ("DeepReduce's codecs on one layer, 368 entries", time_table),
    ("Seconds of an iteration of NCF, 4 ranks, top 10 %", iteration_table),
)
