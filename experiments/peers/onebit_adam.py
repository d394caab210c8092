"""1-bit Adam: dense steps first, then Adam's variance stands still.

Tang et al., ICML 2021. After `dense` steps every worker adds its gradient to the common
momentum, compresses that with error feedback, and the mean of what is sent is the next
common momentum. With one bit an element, the mean is compressed once more, with an
error feedback of its own, as by the servers of the paper. As in DeepSpeed, every
parameter has a scale, and elements without a gradient in the dense steps, whose
variance is zero, are left out. With a `density`, everyone's largest entries are
gathered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from experiments.peers.base import Rows, list_nbytes, row_norms
from experiments.peers.frozen import FrozenAdamW
from experiments.tasks.adamw import decayed
from experiments.tasks.base import Recipe
from thinwire.collectives.collective import check_density
from thinwire.cost import Cost, direct_all_gather, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.sparse import keep_count

_SCALE = 4  # bytes that go with the bits of a parameter


@dataclass(frozen=True, slots=True)
class OneBitAdam:
    """`dense` steps of AdamW, then momentum in one bit, or its largest entries."""

    dense: int = 225
    density: float | None = None
    beta: float = 0.9

    apart = False

    def __post_init__(self) -> None:
        if self.dense < 1:
            raise ConfigError(f"dense is {self.dense}: the variance needs 1 or more")
        if self.density is not None:
            check_density(self.density)

    def start(self, rows: Rows) -> "OneBitRows":
        return OneBitRows(self, rows)


class OneBitRows:
    """The common momentum, and what each worker and the servers have not sent."""

    def __init__(self, settings: OneBitAdam, rows: Rows) -> None:
        self._settings, self._ranks = settings, rows.ranks
        self._size = rows.layout.size
        self._offsets = rows.layout.offsets
        self._error = torch.zeros_like(rows.gradients)
        self._momentum = torch.zeros_like(rows.gradients[0])
        self._mean_error = torch.zeros_like(self._momentum)
        self._moved = torch.zeros_like(self._momentum, dtype=torch.bool)
        self._step = 0

    def optimizer(self, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = decayed(trained, recipe.weight_decay)
        return FrozenAdamW(groups, recipe, dense=self._settings.dense)

    @torch.no_grad()
    def reduce_(self, rows: Tensor) -> None:
        self._step += 1
        beta = self._settings.beta
        if self._is_dense:
            rows[0].copy_(rows.mean(0))
            self._momentum.lerp_(rows[0], 1.0 - beta)
            self._moved |= rows[0] != 0
            return
        self._error.add_(rows, alpha=1.0 - beta).add_(self._momentum, alpha=beta)
        mean = self._taken_from(self._error).mean(0)
        if self._settings.density is None:
            self._mean_error.add_(mean)
            mean = self._taken_from(self._mean_error[None])[0]
        self._momentum.copy_(mean)
        rows[0].copy_(mean)

    def cost(self) -> Cost:
        if self._is_dense:
            return ring_all_reduce(4 * self._size, self._ranks)
        density = self._settings.density
        if density is None:
            scales = _SCALE * self._ranks * (len(self._offsets) - 1)
            return ring_all_reduce(-(-self._size // 8) + scales, self._ranks)
        nbytes = list_nbytes(keep_count(self._size, density), self._size)
        return direct_all_gather(nbytes, self._ranks)

    def norms(self) -> list[float]:
        return row_norms(self._error)

    def state_dict(self) -> dict[str, Any]:
        return {
            "error": self._error,
            "momentum": self._momentum,
            "mean_error": self._mean_error,
            "moved": self._moved,
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._error.copy_(state["error"])
        self._momentum.copy_(state["momentum"])
        self._mean_error.copy_(state["mean_error"])
        self._moved.copy_(state["moved"])
        self._step = int(state["step"])

    @property
    def _is_dense(self) -> bool:
        return self._step <= self._settings.dense

    def _taken_from(self, rows: Tensor) -> Tensor:
        """What each row is compressed to; the rows keep the difference."""
        density = self._settings.density
        rows.mul_(self._moved)
        if density is None:
            sent = torch.cat([_one_bit(piece) for piece in self._pieces(rows)], dim=1)
            sent.mul_(self._moved)
        else:
            keep = keep_count(self._size, density)
            places = rows.abs().topk(keep, dim=1, sorted=False).indices
            sent = torch.zeros_like(rows).scatter_(1, places, rows.gather(1, places))
        rows.sub_(sent)
        return sent

    def _pieces(self, rows: Tensor) -> Iterator[Tensor]:
        """The parameters, of all rows."""
        return (rows[:, low:high] for low, high in pairwise(self._offsets))


def _one_bit(rows: Tensor) -> Tensor:
    """The signs, as long as each row was."""
    scale = torch.linalg.vector_norm(rows, dim=1, keepdim=True) / rows.shape[1] ** 0.5
    return torch.where(rows < 0, -scale, scale)
