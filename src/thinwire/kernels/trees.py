"""Sums as a balanced tree in the given order: the same additions on every device."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def added_up(items: Sequence[Item], add: Callable[[Item, Item], Item]) -> Item:
    """The sum of at least one item: neighbours first, then their sums.

    >>> added_up("abcde", lambda left, right: f"({left}{right})")
    '(((ab)(cd))e)'
    """
    layer = list(items)
    while len(layer) > 1:
        pairs = zip(layer[::2], layer[1::2], strict=False)
        odd = layer[len(layer) - len(layer) % 2 :]
        layer = [add(left, right) for left, right in pairs] + odd
    return layer[0]
