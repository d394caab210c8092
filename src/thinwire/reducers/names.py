"""Parameters of a unit one by one: what waits and what is sent of those not used."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.feedback import FeedbackState
from thinwire.layout import Layout

Range = tuple[int, int]


@lru_cache(maxsize=1024)
def names_in_pieces(layout: Layout, sizes: tuple[int, ...]) -> list[Tensor]:
    """The edges of a layout's names in each piece, every name in exactly one."""
    found: list[list[int]] = [[0] for _ in sizes]
    piece, start = 0, 0
    for low, high in pairwise(layout.offsets):
        # An empty name belongs to the piece before it.
        while high > start + sizes[piece]:
            start += sizes[piece]
            piece += 1
        if low < start:
            raise ConfigError("a piece of a gradient ends in the middle of a name")
        found[piece].append(high - start)
    return [torch.tensor(edges) for edges in found]


def ranges_of(layout: Layout, names: Collection[str]) -> list[Range]:
    """The ranges of `x` of some names."""
    if not names:
        return []
    every = zip(layout.names, pairwise(layout.offsets), strict=True)
    return [each for name, each in every if name in names]


@contextmanager
def set_aside(grad: Sequence[Tensor], ranges: Sequence[Range]) -> Iterator[None]:
    """Set ranges of a gradient to zero during a reduction."""
    parts, start = [], 0
    for piece in grad:
        stop = start + piece.numel()
        # No name is in two pieces.
        inside = [each for each in ranges if start <= each[0] and each[1] <= stop]
        parts += [piece[low - start : high - start] for low, high in inside]
        start = stop
    kept = [part.clone() for part in parts]
    for part in parts:
        part.zero_()
    yield
    for part, old in zip(parts, kept, strict=True):
        part.copy_(old)


@contextmanager
def hidden(
    memory: FeedbackState, ranges: Sequence[Range], scale: float
) -> Iterator[None]:
    """Set ranges of the saved vectors to zero during a step with loss scale `scale`.

    The gradient is zero there too, so the step selects and changes nothing in them.
    """
    keep = scale / memory.scale
    hidden = [(v, slice(*each)) for v in memory.saved.values() for each in ranges]
    stash = [vector.whole()[part].clone() for vector, part in hidden]
    for vector, part in hidden:
        vector.whole()[part] = 0.0
    try:
        yield
    finally:
        for (vector, part), kept in zip(hidden, stash, strict=True):
            if vector.undoable:
                vector.before[part] = kept
            vector.whole()[part] += kept.mul_(keep)
