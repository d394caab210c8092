"""A model whose gradients are given as its input: small whole numbers, so sums hold."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from chaos.plan import Plan

WIDTH = 8
HUGE = 1e30


class Given(nn.Module):
    """Parameters of given sizes, and perhaps an embedding with sparse gradients."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(plan.seed)
        for number, size in enumerate(plan.sizes):
            start = torch.randn(size, generator=generator)
            self.register_parameter(f"dense{number}", nn.Parameter(start))
        self.table: nn.Embedding | None = None
        if plan.rows:
            start = torch.randn(plan.rows, WIDTH, generator=generator)
            self.table = nn.Embedding(plan.rows, WIDTH, sparse=True, _weight=start)

    def forward(self, batch: "Batch") -> Tensor:
        """A loss with the gradients that the batch gives."""
        terms = [
            (getattr(self, f"dense{number}") * given).sum()
            for number, given in enumerate(batch.dense)
        ]
        if self.table is not None:
            terms.append((self.table(batch.words) * batch.values).sum())
        return torch.stack(terms).sum()


@dataclass
class Batch:
    """The gradients of one rank's step; of the table, one row for each word."""

    dense: list[Tensor]
    words: Tensor
    values: Tensor

    @classmethod
    def of(cls, plan: Plan, rank: int, step: int, *, good: bool = False) -> "Batch":
        """Whole numbers drawn for this rank and step; a `good` one is not spoilt."""
        drawn = np.random.default_rng([plan.seed, plan.number, rank, step])
        dense = [_whole(drawn, size) for size in plan.sizes]
        words = drawn.integers(max(plan.rows, 1), size=6)
        batch = cls(dense, torch.from_numpy(words), _whole(drawn, 6, WIDTH))
        for fault in plan.at(step, "bad batch"):
            if fault.ranks == (rank,) and not good:
                place, value, huge = fault.detail
                batch.spoil(place, value, huge=huge, with_rows=plan.rows > 0)
        return batch

    def spoil(self, place: int, value: float, *, huge: bool, with_rows: bool) -> None:
        """Put a value that is not finite somewhere; all others may be `huge`."""
        parts = [*self.dense, *([self.values] if with_rows else [])]
        if huge:
            for part in parts:
                part.fill_(HUGE)
        parts[place % len(parts)].view(-1)[-1] = value

    def flat(self, plan: Plan, clip: float | None) -> tuple[np.ndarray, np.ndarray]:
        """What this rank puts in: of dense parameters, and of the table."""
        dense = torch.cat(self.dense).double()
        table = torch.zeros(max(plan.rows, 1), WIDTH, dtype=torch.float64)
        table.index_add_(0, self.words, self.values.double())
        table *= plan.rows > 0
        if clip is not None:
            norm = torch.cat([dense, table.view(-1)]).norm()
            factor = float((clip / (norm + 1e-6)).clamp(max=1.0))
            dense, table = dense * factor, table * factor
        return dense.numpy(), table.numpy()


def _whole(drawn: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(drawn.integers(-9, 10, shape).astype(np.float32))
