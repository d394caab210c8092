"""DeMo: what momentum has gathered is sent, the largest coefficients of every chunk.

Peng, Quesnelle and Kingma, Decoupled Momentum Optimization, 2024, Algorithm 1. Every
worker adds its gradient to a momentum that decays slowly, takes the `keep` largest
coefficients of every chunk's cosine transform out of it, and sends them. As in the
authors' code, coefficients that several workers sent are averaged over those workers,
and the step is the sign of the sum's inverse transform. Their default is 32 of 4,096.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.peers.base import Rows, row_norms
from experiments.peers.chunks import CosineChunks, Sides
from experiments.peers.signs import Signs
from experiments.tasks.adamw import decayed
from experiments.tasks.base import Recipe
from thinwire.cost import Cost, direct_all_gather
from thinwire.errors import ConfigError

_BITS = 16 + 12  # of an entry: bfloat16, and a place among 4,096


@dataclass(frozen=True, slots=True)
class DeMo:
    """`keep` coefficients of every chunk; what stays decays by `decay` in a step."""

    keep: int = 32
    decay: float = 0.999
    chunk: int = 64

    apart = False

    def __post_init__(self) -> None:
        if self.keep < 1 or self.chunk < 1 or not 0 <= self.decay <= 1:
            raise ConfigError(f"{self}: give 1 or more, and a decay from 0 to 1")

    def start(self, rows: Rows) -> "DeMoRows":
        return DeMoRows(self, rows)


class DeMoRows:
    """The momentum of every worker, as coefficients."""

    def __init__(self, settings: DeMo, rows: Rows) -> None:
        self._settings, self._ranks = settings, rows.ranks
        device = rows.gradients.device
        self._chunks = CosineChunks(rows.layout, device, settings.chunk)
        zero = torch.zeros_like(rows.gradients)
        self._momentum = dict(self._chunks.transform(zero))

    def optimizer(self, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        return Signs(decayed(trained, recipe.weight_decay), recipe.learning_rate)

    @torch.no_grad()
    def reduce_(self, rows: Tensor) -> None:
        found = self._chunks.transform(rows)
        means = {sides: self._sent(sides, found[sides]) for sides in found}
        self._chunks.restore_(means, rows[0])

    def cost(self) -> Cost:
        entries = sum(
            held.shape[1] * min(self._settings.keep, held.shape[2])
            for held in self._momentum.values()
        )
        return direct_all_gather(-(-entries * _BITS // 8), self._ranks)

    def norms(self) -> list[float]:
        return row_norms(torch.cat([m.flatten(1) for m in self._momentum.values()], 1))

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": list(self._momentum.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momentum.values(), state["momentum"], strict=True):
            mine.copy_(saved)

    def _sent(self, sides: Sides, found: Tensor) -> Tensor:
        """Take the largest coefficients out of the momentum; their means."""
        momentum = self._momentum[sides]
        momentum.mul_(self._settings.decay).add_(found)
        keep = min(self._settings.keep, momentum.shape[2])
        places = momentum.abs().topk(keep, dim=2, sorted=False).indices
        values = momentum.gather(2, places)
        momentum.scatter_(2, places, 0.0)
        total = torch.zeros_like(momentum[0])
        count = torch.zeros_like(total)
        for where, what in zip(places, values, strict=True):
            total.scatter_add_(1, where, what)
            count.scatter_add_(1, where, torch.ones_like(what))
        return total / count.clamp_(min=1.0)
