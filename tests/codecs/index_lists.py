"""Lists for the tests of index codecs, on both backends."""

from collections.abc import Callable
from contextlib import nullcontext
from math import lgamma, log

import torch
from hypothesis import strategies as st
from torch import Tensor

from thinwire import kernels
from thinwire.errors import WireError
from thinwire.kernels import index_dtype

SIZES = st.sampled_from([0, 1, 2, 7, 8, 63, 64, 65, 1000, 5003])


def listed(indices, size: int) -> Tensor:
    return torch.tensor(sorted(indices), dtype=index_dtype(size))


def uniform(size: int, nnz: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(size, generator=generator)[:nnz]
    return chosen.sort().values.to(index_dtype(size))


def clustered(size: int, nnz: int, seed: int = 0) -> Tensor:
    """Up to `nnz` indices in runs of about ten."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(size, (-(-nnz // 10),), generator=generator)
    places = (starts[:, None] + torch.arange(10)).view(-1)[:nnz]
    return places[places < size].unique().to(index_dtype(size))


def edge(size: int, nnz: int, seed: int = 0) -> Tensor:
    """All at the beginning or all at the end."""
    start = (size - nnz) * (seed % 2)
    return torch.arange(start, start + nnz, dtype=index_dtype(size))


@st.composite
def lists(draw, sizes=SIZES):
    """A size and indices below it: none, a few, some blocks of Rice codes, or all."""
    size = draw(sizes)
    nnz = draw(st.sampled_from([0, 1, 2, 16, 255, 256, 257, 700, size]))
    kind = draw(st.sampled_from([uniform, clustered, edge])) if size else edge
    return size, kind(size, min(nnz, size), draw(st.integers(0, 99)))


def padded(section: Tensor) -> Tensor:
    """A section as a packet holds it."""
    whole = torch.zeros(-(-len(section) // 8) * 8, dtype=torch.uint8)
    whole[: len(section)] = section
    return whole


def bits_of(section: Tensor) -> str:
    """The bits of a section in their order, the least significant of a byte first."""
    return "".join(f"{byte:08b}"[::-1] for byte in section.tolist())


def section_of(bits: str) -> Tensor:
    """The inverse of `bits_of`, filled up with zeros."""
    bits += "0" * (-len(bits) % 8)
    octets = [bits[i : i + 8] for i in range(0, len(bits), 8)]
    return torch.tensor([int(octet[::-1], 2) for octet in octets], dtype=torch.uint8)


def bound(size: int, nnz: int) -> float:
    """The least possible bits per entry: log2 of the number of lists."""
    ways = lgamma(size + 1) - lgamma(nnz + 1) - lgamma(size - nnz + 1)
    return ways / log(2) / nnz


def both(call: Callable[[], Tensor]) -> list[Tensor | str]:
    """What the fast kernels and the reference answer; a refusal is "refused"."""
    answers = []
    for backend in (nullcontext(), kernels.by_reference()):
        with backend:
            try:
                answers.append(call())
            except WireError:
                answers.append("refused")
    return answers
