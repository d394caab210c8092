"""Reduction: how a training run reduces its gradients, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
from torch import nn
from typing_extensions import TypeIs

from experiments.peers.base import Peer
from experiments.peers.catalog import PEERS, peer
from experiments.tasks.base import Recipe
from experiments.train.clipping import Clipped
from experiments.train.powersgd import PowerSGD
from experiments.train.published_gtopk import PublishedGTopK
from thinwire import catalog
from thinwire.collectives import Dense, RowCollective
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Forget, Momentum, Residual
from thinwire.reducers import Pipeline

COMPARED = ("powersgd", "gtopk-published", *PEERS)
"""Methods that only training knows, to compare with."""

Reducer = Pipeline | PowerSGD | Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A method by name and its options, as `thinwire.attach` takes them.

    Besides its methods there are those to compare with: "powersgd" (options `rank`,
    `dense`), "gtopk-published", whose residual rule loses gradient, and the peers,
    whose options are their fields and whose optimizers are their own. With
    `clip_locally`, the recipe's clipping is done by every rank before it remembers.
    """

    method: str = "dense"
    density: float = 0.01
    codec: str | None = None
    feedback: str = "residual"
    sparse: str = "gather"
    clip_locally: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def reducer(self, recipe: Recipe, ranks: int, seed: int) -> Reducer:
        """What reduces gradients; `ConfigError` for what does not exist."""
        if self.method == "powersgd" or self.method in PEERS:
            self._check_unset()
        if self.method == "powersgd":
            return self._powersgd(seed)
        if self.method in PEERS:
            return peer(self.method, recipe, self.options)
        published = self.method == "gtopk-published"
        if published and self.options:
            raise ConfigError(
                f"gtopk-published has no options, but {', '.join(self.options)} is set"
            )
        reducer = catalog.reducer(
            "gtopk" if published else self.method,
            density=self.density,
            codec=self.codec,
            feedback=self._feedback(recipe, ranks),
            seed=seed,
            **self.options,
        )
        if published:
            reducer = replace(reducer, collective=PublishedGTopK(self.density))
        reducer.collective.check(ranks)
        return reducer

    def rows(self) -> RowCollective:
        """What adds up the gradients of sparse embeddings."""
        return catalog.sparse(self.sparse)

    def optimizer(self, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        """The recipe's optimizer, without the momentum that the feedback applies."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if not self._has_momentum(recipe):
            return recipe.optimizer_of(trained, waits=self._waits(recipe))
        # Weight decay is the optimizer's and has no momentum now: as strong as before.
        decay = recipe.weight_decay / (1.0 - recipe.momentum)
        return replace(recipe, weight_decay=decay).optimizer_of(trained, momentum=0.0)

    def clip(self, recipe: Recipe) -> float | None:
        """The largest norm of a mean gradient."""
        return None if self.clip_locally else recipe.clip

    def _check_unset(self) -> None:
        """PowerSGD and peers have an error feedback of their own, and no codec."""
        ours = {
            "codec": self.codec is not None,
            "feedback": self.feedback != "residual",
            "clip_locally": self.clip_locally,
        }
        if any(ours.values()):
            named = ", ".join(name for name, is_set in ours.items() if is_set)
            raise ConfigError(f"{self.method} knows no {named}: leave it as it is")

    def _powersgd(self, seed: int) -> PowerSGD:
        try:
            return PowerSGD(**{"seed": seed, **self.options})
        except TypeError as error:
            raise ConfigError(
                f"an option of powersgd that cannot be read: {error}; it has rank and "
                "dense, which are numbers"
            ) from error

    def _waits(self, recipe: Recipe) -> bool:
        """Whether entries of a gradient wait in residuals until they are sent."""
        reducer = self.reducer(recipe, 1, 0)
        return isinstance(reducer, Pipeline) and reducer.collective.density is not None

    def _has_momentum(self, recipe: Recipe) -> bool:
        return self.feedback == "momentum" and recipe.momentum > 0.0

    def _feedback(self, recipe: Recipe, ranks: int) -> str | Feedback:
        feedback: str | Feedback = self.feedback
        if self.feedback == "momentum":
            feedback = Momentum(recipe.momentum)
        if not (self.clip_locally and recipe.clip):
            return feedback
        then = catalog.reducer("topk", feedback=feedback).feedback
        return Clipped(recipe.clip / sqrt(ranks), then)


def is_peer(reducer: Reducer) -> TypeIs[Peer]:
    """Whether this is one of the methods that are no part of thinwire."""
    return not isinstance(reducer, Pipeline | PowerSGD)


def is_plain(reducer: Reducer) -> bool:
    """Whether all that is done is the library's all-reduce, as in plain DDP."""
    return (
        isinstance(reducer, Pipeline)
        and isinstance(reducer.collective, Dense)
        and isinstance(reducer.feedback, Residual | Forget)
    )
