"""Codecs: bits beside the bound, nanoseconds, error, recall; next to what others do.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --size 1_000_000 --densities 0.01 --json figures.json

Lists are the largest elements of vectors of 16.8 M (uniform supports, since all
elements have one law), supports that cluster, and the largest elements of a gradient of
the demo's model. Times are nanoseconds per entry that one thread takes of a processor:
the median, and the least and the most of several runs. On a machine that is shared they
are upper bounds. What is timed is verified: exact codecs give back every bit, whole
packets what the reference decodes to.

Beside ours: DeepReduce's Bloom filter; zlib and zstd on the same bytes ("deflate" and
"zstd" of values are just that); what numpy and torch offer.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import product
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from codec_halves import SECONDS, index_halves, value_error, value_half
from codec_targets import Figures, measured, show_targets
from lists import LAWS, clustered, recorded, sample, uniform
from tables import head, percent, row, times, title
from thinwire import kernels
from thinwire.catalog import DEFAULT_CODEC, INDEX_CODECS, VALUE_CODECS, codec
from thinwire.codecs import Bloom, Float32, Split
from thinwire.kernels import packet_checksum
from thinwire.sparse import SparseVector
from thinwire.tools.bench.codecs import (
    Measured,
    bound,
    clocked,
    largest,
    measure,
    measure_half,
    one_thread,
    recall,
)
from thinwire.tools.bench.machine import machine

COMPOSED = (
    "raw",
    DEFAULT_CODEC,
    "rice+bfloat16",
    "rice+int8",
    "rice+log5",
    "rice+log4",
    "rice+log3",
    "rice+tiers2",
    "rice+tiers4",
    "rice+tiers8",
    "varint+bfloat16",
    "huffman+deflate",
    "rice+fit-poly",
    "rice+fit-dexp",
    "bloom-p2+qsgd",
)
SUMMED = (DEFAULT_CODEC, "rice+log4")
BANDWIDTHS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1250e6}
# Elements, entries and rate; the expected recall of p1, leftmost and p2.
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
    title("Bloom: recall of the policies, mean of 5 supports (expected in brackets)")
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


def show_superset(figures: Figures) -> None:
    """DeepReduce's filter for gradients that are mostly not zero, as in NCF."""
    size, fpr = 655_360, 0.6
    vector = largest(sample("Laplace", size), 0.61)
    given = Split(Bloom("p0", fpr), Float32())
    searched = patch.object(kernels, "look_up", kernels.look_up.reference)
    title(f"bloom-p0 at a rate of {fpr:g}, {vector.nnz:,} of {size:,} entries: ms")
    head("values at the positives", "encode", "decode")
    for way, how in (("by search", searched), ("by one walk", nullcontext())):
        with how:
            found = measure(given, vector)
        figures[f"superset {way}"] = asdict(found)
        taken = (vector.nnz * t.median / 1e6 for t in (found.encode, found.decode))
        row(way, *(f"{ms:.1f}" for ms in taken))


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
        body = bare.encode(vector).body
        summing, _ = clocked(lambda body=body: packet_checksum(body), 1)
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


def cells(found: Measured) -> list[str]:
    bits = (found.index_bits, found.value_bits, found.packet_bits)
    return [
        *(f"{each:.2f}" for each in bits),
        *map(times, (found.encode, found.decode)),
        percent(found.error),
        f"{found.recall:.3f}",
    ]


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
        show_superset(figures)
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
