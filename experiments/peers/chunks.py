"""Chunks of parameters, in the domain of a cosine transform, for DeMo.

A matrix is cut into squares of at most 64 x 64, anything else into pieces of at most
64; a side that 64 does not divide is cut by its largest divisor below.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.layout import Layout

Sides = tuple[int, int]
Chunks = Mapping[Sides, Tensor]
"""By the height and the width of a chunk: all of them, (workers, count, elements)."""


class CosineChunks:
    """Cuts rows with a layout into chunks, transforms them, and puts them back."""

    def __init__(self, layout: Layout, device: torch.device, most: int = 64) -> None:
        self._places: dict[Sides, list[tuple[int, int, int]]] = {}
        for shape, offset in zip(layout.shapes, layout.offsets, strict=False):
            height, width = _as_matrix(shape)
            sides = divisor(height, most), divisor(width, most)
            self._places.setdefault(sides, []).append((offset, height, width))
        lengths = {side for sides in self._places for side in sides}
        self._bases = {n: cosines(n).to(device) for n in lengths}

    def transform(self, rows: Tensor) -> Chunks:
        """Every worker's chunks, as coefficients."""
        return {sides: self._cut(rows, sides) for sides in self._places}

    def restore_(self, chunks: Chunks, row: Tensor) -> None:
        """Write what one worker's coefficients stand for into a row."""
        for (high, wide), places in self._places.items():
            squares = chunks[high, wide].view(-1, high, wide)
            plain = self._bases[high].T @ squares @ self._bases[wide]
            counts = [height * width // (high * wide) for _, height, width in places]
            parts = torch.split(plain, counts)
            for (offset, height, width), part in zip(places, parts, strict=True):
                grid = part.view(height // high, width // wide, high, wide)
                matrix = row[offset : offset + height * width].view(height, width)
                matrix.copy_(grid.transpose(1, 2).reshape(height, width))

    def _cut(self, rows: Tensor, sides: Sides) -> Tensor:
        high, wide = sides
        squares = [
            rows[:, offset : offset + height * width]
            .view(len(rows), height // high, high, width // wide, wide)
            .transpose(2, 3)
            .reshape(len(rows), -1, high, wide)
            for offset, height, width in self._places[sides]
        ]
        every = self._bases[high] @ torch.cat(squares, dim=1) @ self._bases[wide].T
        return every.flatten(2)


def divisor(side: int, most: int) -> int:
    """The largest divisor of a side that is not above `most`.

    >>> divisor(384, 64), divisor(65, 64), divisor(7, 64)
    (64, 13, 7)
    """
    return next(n for n in range(min(side, most), 0, -1) if side % n == 0)


def cosines(length: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II), a basis vector in every row."""
    at = torch.arange(length, dtype=torch.float64)
    basis = torch.cos(math.pi * (at + 0.5) * at[:, None] / length)
    basis *= math.sqrt(2 / length)
    basis[0] /= math.sqrt(2)
    return basis.float()


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:  # noqa: PLR2004 - a vector, or a number
        return 1, torch.Size(shape).numel()
    return shape[0], torch.Size(shape[1:]).numel()
