"""Codecs: bits beside the bound, nanoseconds, error, recall; next to what others do.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --size 1_000_000 --densities 0.01 --json figures.json

Lists are the largest elements of vectors of 16.8 M (uniform supports, since elements
are alike), supports that cluster, and the largest elements of a gradient of the demo's
model. Times are nanoseconds per entry that one thread takes of a processor: the median,
and the least and the most of several runs. On a machine that is shared they are upper
bounds. What is timed is verified: exact codecs give back every bit, whole packets what
the reference decodes to.

Beside ours: DeepReduce's Bloom filter; zlib and zstd on the same bytes ("deflate" and
"zstd" of values are just that); what numpy and torch offer.
"""

import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import asdict
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from lists import LAWS, clustered, recorded, sample, uniform
from thinwire.catalog import DEFAULT_CODEC, INDEX_CODECS, VALUE_CODECS, codec
from thinwire.codecs import Bloom, IndexCodec, Split, ValueCodec
from thinwire.sparse import SparseVector
from thinwire.tools.bench.codecs import (
    Half,
    Measured,
    Times,
    bound,
    clocked,
    largest,
    measure,
    measure_half,
    one_thread,
    recall,
    relative_error,
)
from thinwire.tools.bench.machine import machine

SECONDS = 0.1
EXACT = [name for name, index in INDEX_CODECS.items() if not isinstance(index, Bloom)]
COMPOSED = (
    "raw",
    DEFAULT_CODEC,
    "rice+bfloat16",
    "rice+int8",
    "rice+log5",
    "rice+log4",
    "rice+log3",
    "varint+bfloat16",
    "huffman+deflate",
    "rice+fit-poly",
    "rice+fit-dexp",
    "bloom-p2+qsgd",
)
SUMMED = (DEFAULT_CODEC, "rice+log4")
BANDWIDTHS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1250e6}
# Elements, entries and rate; the recall of p1, leftmost and p2 that the sheet states.
RECALLS = (
    (36_864, 368, 0.001, (0.918, 0.912, 0.997)),
    (36_864, 368, 0.002, (0.845, 0.841, 0.989)),
    (36_864, 368, 0.004, (0.705, 0.699, 0.941)),
    (36_864, 368, 0.01, (0.487, 0.479, 0.719)),
    (36_864, 368, 0.02, (0.326, 0.317, 0.522)),
    (262_144, 26_214, 0.01, (0.918, 0.917, 0.983)),
    (1_048_576, 1048, 0.0001, (0.907, 0.905, 0.999)),
    (1_048_576, 1048, 0.001, (0.524, 0.513, 0.818)),
)

Figures = dict[str, dict[str, object]]
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


def show_indices(options: argparse.Namespace, figures: Figures) -> None:
    for support in (uniform, clustered):
        title(f"Indices, {support.__name__} support, n = {options.size:,}")
        head("density", "codec", "bits", "above bound", "encode ns", "decode ns", "")
        for density in options.densities:
            indices = support(options.size, density)
            least = bound(options.size, len(indices))
            row(f"{density:g}", "*bound*", f"{least:.2f}", "0", "", "", "")
            filters = support is uniform
            for name, half, found in index_halves(
                indices, options.size, filters=filters
            ):
                figures[f"{support.__name__} {density:g} {name}"] = {
                    **asdict(half),
                    "bound": least,
                }
                row(
                    f"{density:g}",
                    name,
                    f"{half.bits:.2f}",
                    f"{half.bits - least:+.2f}",
                    *map(times, (half.encode, half.decode)),
                    "" if found == 1.0 else f"recall {found:.3f}",
                )


def show_values(
    vectors: dict[tuple[str, float], SparseVector],
    options: argparse.Namespace,
    figures: Figures,
) -> None:
    title(f"Values, the largest of n = {options.size:,}; times with Laplace values")
    laws = [f"error {law}" for law in LAWS]
    head("density", "codec", "bits", "encode ns", "decode ns", *laws)
    for density in options.densities:
        lists = [vectors[law, density].values for law in LAWS]
        timed = vectors["Laplace", density].values
        half, _ = measure_half(
            lambda values=timed: values.to(torch.bfloat16).view(torch.uint8),
            lambda section: section.view(torch.bfloat16).float(),
            len(timed),
            seconds=SECONDS,
        )
        row(
            f"{density:g}",
            "torch .to(bfloat16)",
            f"{half.bits:.2f}",
            *map(times, (half.encode, half.decode)),
            *[""] * len(laws),
        )
        for name, value in VALUE_CODECS.items():
            sort = value.sorts
            given = [v.sort(descending=True).values if sort else v for v in lists]
            half, _ = value_half(value, given[list(LAWS).index("Laplace")])
            errors = [value_error(value, values) for values in given]
            figures[f"values {density:g} {name}"] = {**asdict(half), "errors": errors}
            row(
                f"{density:g}",
                name,
                f"{half.bits:.2f}",
                *map(times, (half.encode, half.decode)),
                *map(percent, errors),
            )
    print("\nfit-poly and fit-dexp get sorted values; sorting and order cost extra.")


def value_error(value: ValueCodec, values: Tensor) -> float:
    section = value.encode(values)
    return relative_error(value.decode(section, len(values)), values)


def show_composed(
    x: Tensor, densities: Sequence[float], what: str, figures: Figures
) -> None:
    """Whole packets: header, checksum and all."""
    title(f"Packets, {what}, n = {x.numel():,}")
    columns = ("index", "value", "packet", "encode ns", "decode ns", "error", "recall")
    head("density", "codec", *columns)
    for density in densities:
        vector = largest(x, density)
        least = bound(vector.size, vector.nnz)
        row(f"{density:g}", "*bound*", f"{least:.2f}", *[""] * 6)
        for name in COMPOSED:
            found = measured(name, vector, x)
            figures[f"{what} {density:g} {name}"] = asdict(found)
            row(f"{density:g}", name, *cells(found))


def measured(name: str, vector: SparseVector, x: Tensor) -> Measured:
    seconds = 0 if "bloom" in name else SECONDS
    return measure(codec(name), vector, lambda i: x[i.long()], seconds=seconds)


def show_sweep(options: argparse.Namespace, figures: Figures) -> None:
    """Elias-Fano and Rice at many densities; sizes only."""
    lots = torch.rand(options.size, generator=torch.Generator().manual_seed(4))
    worst: dict[str, tuple[float, float]] = {}
    for density in np.geomspace(1e-4, 0.5, options.points):
        indices = (lots < density).nonzero().view(-1).int()
        least = bound(options.size, len(indices))
        for name in ("elias-fano", "rice"):
            section = INDEX_CODECS[name].encode(indices, options.size)
            above = 8 * len(section) / len(indices) - least
            for reach in (0.1, 0.5):
                if density <= 1.001 * reach:
                    key = f"{name} up to {reach:g}"
                    worst[key] = max(worst.get(key, (-9.0, 0.0)), (above, density))
    title(
        f"{options.points} densities from 1e-4 on, uniform: most bits above the bound"
    )
    head("codec and densities", "above bound", "at density")
    for key, (above, density) in worst.items():
        figures[f"sweep {key}"] = {"above": above, "density": density}
        row(key, f"{above:.3f}", f"{density:.4g}")


def show_recall(figures: Figures) -> None:
    title("Bloom: recall of the policies, mean of 5 supports (the sheet's in brackets)")
    policies = ("p1", "leftmost", "p2")
    head("elements", "entries", "rate", "bits", *policies)
    for size, nnz, fpr, wanted in RECALLS:
        found = np.zeros(len(policies))
        for seed in range(5):
            chosen = np.random.default_rng(seed).choice(size, nnz, replace=False)
            indices = torch.from_numpy(np.sort(chosen)).int()
            section = Bloom(fpr=fpr).encode(indices, size)
            for place, policy in enumerate(policies):
                read = Bloom(policy, fpr, seed).decode(section, size, nnz)
                found[place] += recall(read, indices) / 5
        figures[f"recall {size} {fpr:g}"] = dict(zip(policies, found, strict=True))
        said = (f"{f:.3f} ({w:.3f})" for f, w in zip(found, wanted, strict=True))
        bits = 8 * len(section) / nnz
        row(f"{size:,}", f"{nnz:,}", f"{fpr:g}", f"{bits:.2f}", *said)


def show_checksum(
    vectors: dict[tuple[str, float], SparseVector],
    options: argparse.Namespace,
    figures: Figures,
) -> None:
    """Both ends sum a packet once; its time is encoding, decoding and the wire's."""
    title("The checksum: XXH3 of a packet, twice, of its time without it")
    shares = [f"of its time at {name}" for name in BANDWIDTHS]
    head("density", "codec", "bytes", "XXH3 us", "encode + decode us", *shares)
    for density, name in product(options.densities, SUMMED):
        vector, whole = vectors["Laplace", density], codec(name)
        bare = Split(whole.index, whole.value, checksum=False)
        found = measure(bare, vector, seconds=SECONDS)
        body = bare.encode(vector).body.numpy()
        summing, _ = clocked(lambda body=body: xxhash.xxh3_64_intdigest(body), 1)
        work = vector.nnz * (found.encode.median + found.decode.median)
        parts = [
            2 * summing.median / (work + 1e9 * len(body) / bandwidth)
            for bandwidth in BANDWIDTHS.values()
        ]
        figures[f"checksum {density:g} {name}"] = dict(
            zip(BANDWIDTHS, parts, strict=True)
        )
        row(
            f"{density:g}",
            name,
            f"{len(body):,}",
            f"{summing.median / 1e3:.1f}",
            f"{work / 1e3:.0f}",
            *map(percent, parts),
        )


def show_targets(x: Tensor, options: argparse.Namespace, figures: Figures) -> None:
    densities = [f"{density:g}" for density in options.densities]
    title(
        f"Targets, at densities {', '.join(densities)} where there are several figures"
    )
    head("target", "measured", "met")

    def target(text: str, most: float, found: Sequence[float], said: str) -> None:
        met = ["yes" if each <= most else "NO" for each in found]
        row(text, f"{numbers(found)} {said}", ", ".join(met))

    def above(support: str, name: str) -> list[float]:
        read = (figures[f"{support} {density} {name}"] for density in densities)
        return [each["bits"] - each["bound"] for each in read]

    swept = figures["sweep elias-fano up to 0.1"]["above"]
    target("elias-fano within 0.61 of the bound up to 0.1", 0.61, [swept], "bits")
    target("rice within 0.12", 0.12, above("uniform", "rice"), "bits")
    swept = figures["sweep rice up to 0.5"]["above"]
    target("rice within 0.17 from 1e-4 to 0.5", 0.17, [swept], "bits")
    target("rice below it, clustered", 0.0, above("clustered", "rice"), "bits")
    for what, names, most in (
        ("uniform", ("elias-fano", "rice"), 4.0),
        ("values", ("bfloat16", "int8"), 1.5),
    ):
        for name, way in product(names, ("encode", "decode")):
            read = [figures[f"{what} {density} {name}"][way] for density in densities]
            least = numbers([each["least"] for each in read])
            fixed = fixed_cost(name, options.size)[way == "decode"]
            said = f"ns (least {least}; {fixed:.1f} us of a call are not the list's)"
            found = [each["median"] for each in read]
            target(f"{name} to {way} in {most:g} ns", most, found, said)
    shares = [100 * max(figures[k].values()) for k in figures if "checksum" in k]
    target("checksum below 2 % of a packet's time", 2.0, [max(shares)], "% at most")
    said = [
        f"{name}: {found.packet_bits:.2f} bits, error {percent(found.error)}"
        for name, found in small_enough(x)
    ]
    met = "yes" if said else "NO"
    row("12.3 bits and 5 % error, 1 % of Laplace", "; ".join(said), met)


def fixed_cost(name: str, size: int) -> tuple[float, float]:
    """Microseconds to encode and to decode a list of two entries."""
    if name in INDEX_CODECS:
        two = torch.tensor([size // 3, size // 2], dtype=torch.int32)
        half, _ = index_half(INDEX_CODECS[name], two, size)
    else:
        half, _ = value_half(VALUE_CODECS[name], torch.tensor([1.5, -2.0]))
    return 2e-3 * half.encode.median, 2e-3 * half.decode.median


def small_enough(x: Tensor) -> list[tuple[str, Measured]]:
    """The compositions that take 12.3 bits or less at an error of 5 % or less."""
    vector = largest(x, 0.01)
    names = [f"{i}+{v}" for i, v in product(("elias-fano", "rice"), VALUE_CODECS)]
    found = [(name, measured(name, vector, x)) for name in names]
    good = [(n, m) for n, m in found if m.packet_bits <= 12.3 and m.error <= 0.05]
    return sorted(good, key=lambda each: each[1].packet_bits)


def cells(found: Measured) -> list[str]:
    bits = (found.index_bits, found.value_bits, found.packet_bits)
    return [
        *(f"{each:.2f}" for each in bits),
        *map(times, (found.encode, found.decode)),
        percent(found.error),
        f"{found.recall:.3f}",
    ]


def times(found: Times) -> str:
    return f"{found.median:.3g} ({found.least:.3g} to {found.most:.3g})"


def numbers(found: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in found)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def title(text: str) -> None:
    print(f"\n### {text}\n")


def head(*names: str) -> None:
    row(*names)
    print(f"|{' --- |' * len(names)}")


def row(*texts: str) -> None:
    print(f"| {' | '.join(texts)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--densities", default="0.1,0.01,0.001,0.0001")
    parser.add_argument("--points", type=int, default=50, help="densities of the sweep")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    options.densities = [float(text) for text in options.densities.split(",")]
    start = perf_counter()
    print(f"{machine()}; one thread")
    figures: Figures = {}
    with one_thread():
        dense = {law: sample(law, options.size) for law in LAWS}
        vectors = {
            (law, density): largest(dense[law], density)
            for law, density in product(LAWS, options.densities)
        }
        show_indices(options, figures)
        show_sweep(options, figures)
        show_recall(figures)
        show_values(vectors, options, figures)
        show_composed(dense["Laplace"], options.densities, "Laplace", figures)
        show_composed(recorded(), options.densities, "the demo's gradient", figures)
        show_checksum(vectors, options, figures)
        show_targets(dense["Laplace"], options, figures)
    print(f"\ntook {perf_counter() - start:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
