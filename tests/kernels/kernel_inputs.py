"""Difficult vectors for selection, block layouts, and bitwise equality."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from thinwire.kernels import Block, contiguous_blocks, interleaved_blocks

SIZES = (0, 1, 2, 63, 64, 65, 1000, 5003, 100_003)


def _spike(n: int) -> Tensor:
    x = torch.zeros(n)
    x[n // 2 : n // 2 + 1] = -3e38
    return x


def _signed_zeros(n: int) -> Tensor:
    return torch.where(torch.arange(n) % 3 == 0, -0.0, 0.0)


def _not_finite(n: int) -> Tensor:
    x = torch.randn(n)
    x[::7], x[1::31], x[2::53] = float("inf"), float("nan"), float("-inf")
    return x


def _octaves(n: int) -> Tensor:
    return torch.randn(n) * torch.exp2(torch.randint(-60, 61, (n,)).float())


def _few_nonzero(n: int) -> Tensor:
    return torch.where(torch.rand(n) < 0.003, torch.randn(n), torch.tensor(-0.0))


VECTORS: dict[str, Callable[[int], Tensor]] = {
    "normal": torch.randn,
    "laplace": lambda n: torch.empty(n).exponential_() * torch.randn(n).sign(),
    "ties": lambda n: torch.randint(-3, 4, (n,)).float(),
    "equal": lambda n: torch.full((n,), -2.5),
    "zero": torch.zeros,
    "signed zeros": _signed_zeros,
    "few nonzero": _few_nonzero,
    "denormal": lambda n: torch.randn(n) * 1e-42,
    "spike": _spike,
    "octaves": _octaves,
    "not finite": _not_finite,
    "descending": lambda n: torch.arange(n, 0, -1).float(),
}


def vector(name: str, size: int) -> Tensor:
    torch.manual_seed(size)
    return VECTORS[name](size)


def ways_to_cut(size: int) -> list[tuple[Block, ...]]:
    """The whole, contiguous blocks, and interleaved ones, aligned to words or not."""
    cuts = [(Block.whole(size),), contiguous_blocks(size, 3)]
    return cuts + [interleaved_blocks(size, 3, chunk) for chunk in (1, 3, 64, 128)]


def some_blocks(size: int) -> Iterator[Block]:
    """Every block of every cut; of a long vector, for time's sake, one of each."""
    for blocks in ways_to_cut(size):
        yield from blocks if size < 10_000 else blocks[-1:]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal to the sign of zero and the payload of NaN."""
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        left.element_size()
    ]
    alike = left.dtype == right.dtype and left.shape == right.shape
    return alike and torch.equal(left.view(width), right.view(width))


def some_indices(size: int, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randperm(size)[:count].sort().values.to(dtype)
