"""Shards: the pieces of a model's parameters that one rank has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.hooks.place import Place


@dataclass(frozen=True, slots=True)
class Cut:
    """How a parameter is cut into shards: along a dimension, as `torch.chunk` does.

    >>> [Cut((5, 2), 0).piece(shard, 3) for shard in range(3)]
    [(0, 2), (2, 2), (4, 1)]
    >>> Cut((5, 2), 0).shape(2, 3)
    (1, 2)
    """

    whole: tuple[int, ...]
    dim: int

    def piece(self, shard: int, shards: int) -> tuple[int, int]:
        """Where a shard starts along the dimension, and how long it is."""
        size = self.whole[self.dim]
        most = -(-size // shards)
        start = min(shard * most, size)
        return start, min(most, size - start)

    def shape(self, shard: int, shards: int) -> tuple[int, ...]:
        """The shape of a shard."""
        _, length = self.piece(shard, shards)
        return (*self.whole[: self.dim], length, *self.whole[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class Shards:
    """A rank's place, and its piece of every parameter by name.

    `cuts` say how all parameters are cut. `units` are the parameters whose gradients
    are ready together, by name.
    """

    place: Place
    pieces: Mapping[str, Tensor]
    cuts: Mapping[str, Cut]
    units: Sequence[tuple[str, ...]]

    def shapes(self, shard: int, shards: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a shard's pieces, if there are that many shards."""
        return {name: cut.shape(shard, shards) for name, cut in self.cuts.items()}

    def cut(self, pieces: Sequence[Tensor], name: str) -> Tensor:
        """This rank's piece of a vector, of which these are all pieces."""
        cut, place = self.cuts[name], self.place
        start, length = cut.piece(place.shard, place.shards)
        return torch.cat([*pieces], dim=cut.dim).narrow(cut.dim, start, length)
