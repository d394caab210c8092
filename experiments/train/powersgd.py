"""PowerSGD on all workers' gradients at once, for comparison with virtual workers.

Vogels et al., NeurIPS 2019: one step of power iteration per matrix, warm-started, with
error feedback. Everything that travels is a sum, and products are linear: so the mean
of all gradients is compressed once, and what each worker keeps is its own difference.
Arithmetic and choices are those of PyTorch's communication hook, up to rounding: that
hook is what real processes run.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.cost import Cost, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.layout import Layout

_LEAST_RATE = 2  # a matrix that is not compressed by more is sent as it is
_GRAM_SCHMIDT_UP_TO = 2
_LEAST_DENSE = 2  # steps until DDP has settled its buckets


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Matrices of `rank` columns; the first `dense` steps are dense, at least two."""

    rank: int = 2
    dense: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}: give at least 1, for example 2")
        if self.dense < _LEAST_DENSE:
            raise ConfigError(
                f"dense is {self.dense}: PowerSGD with error feedback starts after at "
                "least 2 dense steps, when DDP has settled its buckets"
            )


class LowRank:
    """PowerSGD on rows of gradients with this layout."""

    def __init__(self, method: PowerSGD, layout: Layout, rows: Tensor) -> None:
        self._method = method
        self._ranks = len(rows)
        self._layout = layout
        self._matrices = _matrices(layout, method.rank)
        # As the hook does: matrices of one shape together, shapes as they come.
        shapes_seen = list(dict.fromkeys(m[1:] for m in self._matrices))
        self._matrices.sort(key=lambda m: shapes_seen.index(m[1:]))
        self._error = torch.zeros_like(rows)
        self._qs: list[Tensor] = []
        self._step = 0

    @torch.no_grad()
    def reduce_(self, rows: Tensor) -> None:
        """Write the mean that all ranks get into the first row."""
        self._step += 1
        if self._step <= self._method.dense:
            rows[0].copy_(rows.mean(0))
            return
        rows.add_(self._error)
        mean = rows.mean(0)
        self._compress_(mean)
        torch.sub(rows, mean, out=self._error)
        self._forget_plain()
        rows[0].copy_(mean)

    def cost(self) -> Cost:
        """What a worker sent in the last step."""
        if self._step <= self._method.dense:
            return ring_all_reduce(4 * self._layout.size, self._ranks)
        return cost_of(self._method, self._layout, self._ranks)

    def norms(self) -> list[float]:
        """The norm of each worker's residual."""
        norms: list[float] = torch.linalg.vector_norm(self._error, dim=1).tolist()
        return norms

    def state_dict(self) -> dict[str, Any]:
        return {"error": self._error, "qs": self._qs, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._error.copy_(state["error"])
        self._qs = [q.to(self._error.device) for q in state["qs"]]
        self._step = int(state["step"])

    def _compress_(self, mean: Tensor) -> None:
        """Replace every matrix by its approximation."""
        if not self._qs:
            self._qs = self._random_qs(mean.device)
        qs = []
        for (offset, height, width), last in zip(self._matrices, self._qs, strict=True):
            matrix = mean[offset : offset + height * width].view(height, width)
            p = _orthogonal(matrix @ _orthogonal(last))
            qs.append(matrix.T @ p)
            torch.mm(p, qs[-1].T, out=matrix)
        self._qs = qs

    def _random_qs(self, device: torch.device) -> list[Tensor]:
        # The hook's own random numbers, so that the two can be compared.
        seed = int(np.random.RandomState(self._method.seed).randint(1_000_000_000))
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.randn(
                width, min(h, width, self._method.rank), generator=generator
            ).to(device)
            for _, h, width in self._matrices
        ]

    def _forget_plain(self) -> None:
        """Entries that were sent exactly leave no residual."""
        start = 0
        for offset, height, width in sorted(self._matrices):
            self._error[:, start:offset] = 0.0
            start = offset + height * width
        self._error[:, start:] = 0.0


def cost_of(method: PowerSGD, layout: Layout, ranks: int) -> Cost:
    """What a worker sends in a step after the dense ones."""
    matrices = _matrices(layout, method.rank)
    plain = layout.size - sum(h * w for _, h, w in matrices)
    tall = sum(h * min(h, w, method.rank) for _, h, w in matrices)
    wide = sum(w * min(h, w, method.rank) for _, h, w in matrices)
    sizes = [4 * plain, 4 * tall, 4 * wide]
    return sum((ring_all_reduce(n, ranks) for n in sizes if n), Cost())


def _matrices(layout: Layout, rank: int) -> list[tuple[int, int, int]]:
    """What is compressed: where it lies, its height and its width."""
    return [
        (offset, height, width)
        for shape, offset in zip(layout.shapes, layout.offsets, strict=False)
        for height, width in [_as_matrix(shape)]
        if _is_compressed(height, width, rank)
    ]


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    height = shape[0] if shape else 1
    return height, torch.Size(shape).numel() // max(height, 1)


def _is_compressed(height: int, width: int, rank: int) -> bool:
    rank = min(height, width, rank)
    return (height + width) * rank * _LEAST_RATE < height * width


def _orthogonal(matrix: Tensor) -> Tensor:
    """Columns made orthonormal, as the hook does it."""
    if matrix.shape[1] > _GRAM_SCHMIDT_UP_TO:
        basis: Tensor = torch.linalg.qr(matrix).Q
        return basis
    columns: list[Tensor] = []
    for column in matrix.unbind(1):
        rest = column
        for done in columns:
            rest = rest - (done * rest).sum() * done
        columns.append(rest / torch.linalg.vector_norm(rest))
    return torch.stack(columns, 1)
