"""Peers by name, made from a recipe and options."""

from collections.abc import Mapping
from typing import Any

from experiments.peers.base import MakePeer, Peer
from experiments.peers.demo import DeMo
from experiments.peers.onebit_adam import OneBitAdam
from experiments.peers.sparse_loco import SparseLoCo
from experiments.tasks.base import Recipe
from thinwire.errors import ConfigError


def _onebit_adam(recipe: Recipe, **options: Any) -> Peer:
    return OneBitAdam(**{"beta": recipe.betas[0], **options})


PEERS: Mapping[str, MakePeer] = {
    "demo": lambda _, **options: DeMo(**options),
    "sparse-loco": lambda _, **options: SparseLoCo(**options),
    "1-bit-adam": _onebit_adam,
}


def peer(name: str, recipe: Recipe, options: Mapping[str, Any]) -> Peer:
    """The peer of a name; `ConfigError` for options that it does not have."""
    try:
        return PEERS[name](recipe, **options)
    except TypeError as error:
        raise ConfigError(
            f"an option of {name} that cannot be read: {error}"
        ) from error
