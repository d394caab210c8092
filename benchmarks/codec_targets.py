"""Limits for the measured codecs."""

import argparse
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from codec_halves import SECONDS, index_half, value_half
from tables import head, numbers, percent, row, title
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS, codec
from thinwire.sparse import SparseVector
from thinwire.tools.bench.codecs import Measured, largest, measure

Figures = dict[str, dict[str, object]]


def measured(name: str, vector: SparseVector, x: Tensor) -> Measured:
    seconds = 0 if "bloom" in name else SECONDS
    return measure(codec(name), vector, lambda i: x[i.long()], seconds=seconds)


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
