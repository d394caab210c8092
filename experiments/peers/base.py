"""The contract of peers: a matrix of gradients in, what the optimizer gets out.

A peer is a frozen dataclass of settings; `start` makes what it remembers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.tasks.base import Recipe
from thinwire.cost import Cost
from thinwire.layout import Layout

_BFLOAT16 = 16  # bits
_ELIAS_FANO = 2  # bits of an index, beside the logarithm of what it skips


@dataclass(frozen=True, slots=True)
class Rows:
    """A row of gradients for every worker, and one of weights if it has its own."""

    layout: Layout
    gradients: Tensor
    weights: Tensor | None = None

    @property
    def ranks(self) -> int:
        return len(self.gradients)


class RowMethod(Protocol):
    """What a method does with all rows, and what it remembers between steps."""

    def reduce_(self, rows: Tensor) -> None:
        """Write what every worker's optimizer is given into the first row."""

    def cost(self) -> Cost:
        """What a worker sent in the last step."""

    def norms(self) -> list[float]:
        """The norm of what each worker has not sent."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PeerMethod(RowMethod, Protocol):
    """A method that has an optimizer of its own."""

    def optimizer(self, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        """What steps the model with what `reduce_` writes, at the recipe's rates."""


class Peer(Protocol):
    """The settings of a peer."""

    @property
    def apart(self) -> bool:
        """Whether every worker has parameters of its own."""

    def start(self, rows: Rows) -> PeerMethod: ...


MakePeer = Callable[..., Peer]
"""Takes the recipe and the options of a run."""


def row_norms(rows: Tensor) -> list[float]:
    """The norm of every row."""
    norms: list[float] = torch.linalg.vector_norm(rows.flatten(1), dim=1).tolist()
    return norms


def list_nbytes(entries: int, size: int) -> int:
    """Bytes of a list: values in bfloat16, indices about as Elias-Fano codes them.

    >>> list_nbytes(1000, 100_000)
    3081
    """
    bits = _BFLOAT16 + _ELIAS_FANO + math.log2(size / entries)
    return math.ceil(entries * bits / 8)
