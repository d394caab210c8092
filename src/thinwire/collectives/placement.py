"""Placement: which ranks are on which node."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from thinwire.arguments import is_whole
from thinwire.errors import ConfigError

Placement = tuple[tuple[int, ...], ...]
"""The ranks of every node."""

NodesOption = int | Literal["auto"] | Placement | Sequence[Sequence[int]]
"""The number of consecutive ranks on each node, or the ranks of every node."""

REMEDY = (
    "give 'auto' under torchrun, the number of ranks of every node if nodes have "
    "consecutive ranks, or the ranks of every node, such as [[0, 1], [2, 3]]"
)


def checked_nodes(given: object) -> int | Literal["auto"] | Placement:
    """The option as a frozen value; the ranks of each node, and the nodes, in order."""
    if is_whole(given, least=1):
        return int(given)  # type: ignore[call-overload, no-any-return]
    if isinstance(given, str) and given == "auto":
        return "auto"
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"nodes is {given!r:.300}: {REMEDY}")
    for node in given:
        ranks = isinstance(node, list | tuple) and len(node) > 0
        if not ranks or not all(is_whole(rank, least=0) for rank in node):
            raise ConfigError(f"nodes is {given!r:.300}: {REMEDY}")
    return tuple(sorted(tuple(sorted(map(int, node))) for node in given))


@lru_cache(maxsize=256)
def placement_of(nodes: int | Placement, ranks: int) -> Placement:
    """The ranks of every node; a `ConfigError` if these ranks are others.

    >>> placement_of(2, 4)
    ((0, 1), (2, 3))
    """
    if isinstance(nodes, int):
        if ranks % nodes:
            raise ConfigError(
                f"nodes is {nodes}, which does not divide {ranks} ranks: {REMEDY}"
            )
        return tuple(
            tuple(range(first, first + nodes)) for first in range(0, ranks, nodes)
        )
    named = sorted(rank for node in nodes for rank in node)
    if named != list(range(ranks)):
        raise ConfigError(
            f"nodes is {nodes!r:.300}, which does not name each of the ranks 0 to "
            f"{ranks - 1} once: {REMEDY}"
        )
    if len({len(node) for node in nodes}) > 1:
        raise ConfigError(
            f"nodes is {nodes!r:.300}: all nodes must have equally many ranks, since "
            "each of them reduces one share with one rank of every other node"
        )
    return nodes
