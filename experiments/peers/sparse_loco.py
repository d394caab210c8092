"""SparseLoCo: `every` local steps of AdamW, then the largest of what has changed.

Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025. Every
worker trains parameters of its own. Then it adds the difference to the common ones to
an error that decays by `decay`, takes the largest entries of every chunk of 4,096 out
of it, and sends them; the common parameters move by `rate` times their mean, and every
worker starts from there. The paper also cuts values to two bits; here they are counted
in bfloat16. What is evaluated are the common parameters.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.peers.base import Rows, row_norms
from experiments.tasks.base import Recipe
from thinwire.collectives.collective import check_density
from thinwire.cost import Cost, direct_all_gather
from thinwire.errors import ConfigError

_CHUNK = 4096
_BITS = 16 + 12  # of an entry: bfloat16, and a place in its chunk


@dataclass(frozen=True, slots=True)
class SparseLoCo:
    """`every` steps alone, then `density` of every chunk to everyone."""

    every: int = 15
    density: float = 0.03
    decay: float = 0.95
    rate: float = 1.0

    apart = True

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.every < 1:
            raise ConfigError(f"every is {self.every}: give 1 step or more")

    @property
    def keep(self) -> int:
        """Entries of a chunk."""
        return max(1, round(_CHUNK * self.density))

    def start(self, rows: Rows) -> "SparseLoCoRows":
        return SparseLoCoRows(self, rows)


class SparseLoCoRows:
    """The weights of every worker, what it has not sent, and the common weights."""

    def __init__(self, settings: SparseLoCo, rows: Rows) -> None:
        if rows.weights is None:
            raise ConfigError("local steps need workers with weights of their own")
        self._settings, self._rows, self._weights = settings, rows, rows.weights
        self._base = rows.weights[0].clone()
        chunks = -(-rows.layout.size // _CHUNK)
        shape = rows.ranks, chunks, _CHUNK
        self._error = torch.zeros(shape, device=rows.weights.device)
        self._step = 0

    def optimizer(self, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW of all workers at once; it exchanges after every `every`-th step."""
        if recipe.clip is not None:
            raise ConfigError("local steps with a clip: workers would clip apart")
        every = nn.Parameter(self._weights)
        every.grad = self._rows.gradients
        inner = torch.optim.AdamW(
            [every],
            recipe.learning_rate,
            (recipe.betas[0], recipe.betas[1]),
            recipe.eps,
            weight_decay=0.0,
            fused=every.is_cuda,
        )
        decays = recipe.weight_decay * self._is_matrix()

        def decay(*_: object) -> None:
            with torch.no_grad():
                self._weights.mul_(1.0 - inner.param_groups[0]["lr"] * decays)

        def exchange(*_: object) -> None:
            if self._step % self._settings.every == 0:
                self._exchange(model)

        inner.register_step_pre_hook(decay)
        inner.register_step_post_hook(exchange)
        return inner

    def reduce_(self, rows: Tensor) -> None:
        """Leave every worker its own gradient; the optimizer reads all rows."""
        self._step += 1

    def cost(self) -> Cost:
        if self._step % self._settings.every:
            return Cost()
        entries = self._error.shape[1] * self._settings.keep
        return direct_all_gather(-(-entries * _BITS // 8), self._rows.ranks)

    def norms(self) -> list[float]:
        return row_norms(self._error)

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self._weights,
            "base": self._base,
            "error": self._error,
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        self._base.copy_(state["base"])
        self._error.copy_(state["error"])
        self._step = int(state["step"])

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        size, settings = self._rows.layout.size, self._settings
        self._error.mul_(settings.decay)
        flat = self._error.view(len(self._error), -1)[:, :size]
        flat.add_(self._base).sub_(self._weights)
        places = self._error.abs().topk(settings.keep, dim=2, sorted=False).indices
        values = self._error.gather(2, places)
        self._error.scatter_(2, places, 0.0)
        total = torch.zeros_like(self._error[0])
        for where, what in zip(places, values, strict=True):
            total.scatter_add_(1, where, what)
        mean = total.view(-1)[:size].div_(self._rows.ranks)
        self._base.sub_(mean, alpha=settings.rate)
        self._weights.copy_(self._base.expand_as(self._weights))
        named = dict(model.named_parameters())
        for name, view in self._rows.layout.views(self._base).items():
            named[name].copy_(view)

    def _is_matrix(self) -> Tensor:
        """1 where an element is of a matrix, else 0."""
        mask = torch.zeros_like(self._base)
        views = self._rows.layout.views(mask)
        for view in views.values():
            view.fill_(float(view.dim() > 1))
        return mask
