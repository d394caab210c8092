"""Inputs for the tests of DeepReduce's codecs, and checks on damaged bytes."""

import numpy as np
import torch
from hypothesis import strategies as st

from thinwire.errors import WireError
from thinwire.kernels import index_dtype
from thinwire.sparse import SparseVector

SIZES = st.sampled_from([0, 1, 2, 7, 8, 9, 64, 65, 300, 1000])


@st.composite
def supports(draw, sizes=SIZES):
    """A size and indices below it: none, all, scattered, or side by side."""
    size = draw(sizes)
    kind = draw(st.sampled_from(["none", "all", "scattered", "clustered"]))
    chosen = {"none": range(0), "all": range(size)}.get(kind)
    if chosen is None and kind == "clustered":
        start = draw(st.integers(0, size))
        chosen = range(start, min(size, start + draw(st.integers(0, 40))))
    elif chosen is None:
        chosen = draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=min(size, 40)))
    return size, torch.tensor(sorted(chosen), dtype=index_dtype(size))


def scattered(size, nnz, seed=0):
    """So many indices, at random."""
    chosen = np.random.default_rng(seed).choice(size, nnz, replace=False)
    return torch.from_numpy(np.sort(chosen)).to(index_dtype(size))


def largest(kind, nnz, seed=0, density=0.01):
    """The largest values of a sample, descending: what a sorting codec is given."""
    generator = np.random.default_rng(seed)
    samples = {
        "gaussian": generator.standard_normal,
        "laplace": lambda size: generator.laplace(size=size),
        "student": lambda size: generator.standard_t(3, size=size),
    }[kind](size=int(nnz / density))
    values = samples.astype(np.float32)
    kept = values[np.argpartition(-np.abs(values), nnz)[:nnz]]
    return torch.from_numpy(-np.sort(-kept))


def relative_error(read, values):
    """|read - values| / |values|, in Euclidean norms."""
    values = values.double()
    return float((read.double() - values).norm() / values.norm())


def octets(data):
    """Bytes as a section."""
    return torch.tensor(list(data), dtype=torch.uint8)


def verdict(read, *given, **options):
    """What a decoder returns, or None where it refuses; nothing else may happen."""
    try:
        return read(*given, **options)
    except (ValueError, WireError):
        return None


def descending(values):
    """A sorted tensor, as `Split` would sort it."""
    return torch.tensor(values, dtype=torch.float32).sort(descending=True).values


def forty_of_1000():
    """Forty entries, from 1 to 28 in magnitude but for a zero."""
    values = [(1 + i % 8 / 8) * 2 ** (i // 8) * (-1) ** i for i in range(39)]
    entries = {25 * i: value for i, value in enumerate([*values, 0.0])}
    return SparseVector.of(entries, 1000)
