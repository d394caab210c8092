"""Who would like what: pairs that were rated among pairs drawn at random.

A batch holds rated pairs and four times as many that are not rated, drawn anew in
every epoch. Evaluation ranks each user's held-out item among 99 unrated ones.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.tasks.base import Batch, Carry, Recipe
from experiments.tasks.evaluating import evaluating
from experiments.tasks.ncf import NCF
from experiments.tasks.order import PerEpoch, share, steps_of
from experiments.tasks.ratings import Ratings, load

_NEGATIVES = 4  # for every rated pair
_RIVALS = 99
_TOP = 10
_EVALUATION_SEED = 2017  # the same rivals in every run
_USERS_AT_ONCE = 4096
_TRIES = 100  # a user who has rated everything is left with what was drawn last


class RecommendationData:
    """`Data` of a task whose metric is the hit rate at 10, in percent."""

    def __init__(self, ratings: Ratings, device: torch.device, batch: int) -> None:
        self._ratings, self._device, self._batch = ratings, device, batch
        held_out = ratings.held_out_users, ratings.held_out_items
        everything = self._keys(
            torch.cat([ratings.users, held_out[0]]),
            torch.cat([ratings.items, held_out[1]]),
        )
        self._known = torch.sort(everything).values
        self._epoch = PerEpoch(self._draw)
        generator = torch.Generator().manual_seed(_EVALUATION_SEED)
        users = held_out[0][:, None].expand(-1, _RIVALS)
        rivals = self._unrated(users, generator)
        self._users = held_out[0].to(device)
        # The item that was held out comes first.
        self._ranked = torch.cat([held_out[1][:, None], rivals], dim=1).to(device)

    def steps(self, ranks: int) -> int:
        examples = (1 + _NEGATIVES) * len(self._ratings.users)
        return steps_of(examples, self._batch, ranks)

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        mine = share(rank, ranks, step, self._batch)
        users, items, rated = self._epoch(seed, epoch)
        return users[mine], items[mine], rated[mine]

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        users, items, rated = batch
        logits = model(users, items)
        return functional.binary_cross_entropy_with_logits(logits, rated), carry

    def evaluate(self, model: nn.Module) -> float:
        hits = torch.zeros((), dtype=torch.int64, device=self._device)
        with evaluating(model):
            for users, items in zip(
                torch.split(self._users, _USERS_AT_ONCE),
                torch.split(self._ranked, _USERS_AT_ONCE),
                strict=True,
            ):
                scores = model(users[:, None].expand_as(items), items)
                # A tie is no hit: a model that knows nothing must not look good.
                better = (scores[:, 1:] >= scores[:, :1]).sum(1)
                hits += (better < _TOP).sum()
        return 100 * hits.item() / len(self._users)

    def final(self, model: nn.Module) -> dict[str, float]:
        return {}

    def _keys(self, users: Tensor, items: Tensor) -> Tensor:
        return users * self._ratings.item_count + items

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """An epoch's pairs, in their order: users, items, and 1 where rated, else 0."""
        positive = len(self._ratings.users)
        others = self._ratings.users.repeat(_NEGATIVES)
        users = torch.cat([self._ratings.users, others])
        items = torch.cat([self._ratings.items, self._unrated(others, generator)])
        order = torch.randperm(len(users), generator=generator)
        rated = (order < positive).float()
        return (
            users[order].to(self._device),
            items[order].to(self._device),
            rated.to(self._device),
        )

    def _unrated(self, users: Tensor, generator: torch.Generator) -> Tensor:
        """An item for each user that the user has not rated, drawn at random."""
        count = self._ratings.item_count
        items = torch.randint(count, users.shape, generator=generator)
        for _ in range(_TRIES):
            rated = self._is_known(users, items)
            if not rated.any():
                break
            again = torch.randint(count, (int(rated.sum()),), generator=generator)
            items[rated] = again
        return items

    def _is_known(self, users: Tensor, items: Tensor) -> Tensor:
        keys = self._keys(users, items)
        places = torch.searchsorted(self._known, keys).clamp_max(len(self._known) - 1)
        known: Tensor = self._known[places] == keys
        return known


@dataclass(frozen=True)
class RecommendationTask:
    """Neural collaborative filtering on the ratings at a path."""

    name: str
    recipe: Recipe
    path: Path

    metric = "hit rate at 10, %"
    higher_is_better = True

    def model(self) -> nn.Module:
        return NCF(self._ratings.user_count, self._ratings.item_count)

    def data(self, device: torch.device) -> RecommendationData:
        return RecommendationData(self._ratings, device, self.recipe.batch)

    @cached_property
    def _ratings(self) -> Ratings:
        return load(self.path)
