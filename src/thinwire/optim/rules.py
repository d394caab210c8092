"""The tables that kernels of AdamW read: what depends on the steps waited, and rates.

Powers are products in float64, rounded to float32 at the end, so that they are the same
on every machine.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, log, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels import AdamRules

# After so many steps the pending decay is applied to all elements.
LONGEST_DECAY = 64
# A beta's powers count until they are below float32's, or for so many steps.
_MOST_STEPS = 1 << 16
_VANISHING = log(2.0) * -150

Decay = tuple[float, ...]


@lru_cache(maxsize=16)
def factors_of(*pairs: tuple[float, float]) -> Tensor:
    """The `factors` of `AdamRules` for pairs of betas, by the steps waited.

    After tau steps, for either beta: beta^tau, what is left of the old moment, and
    (1 - beta^tau) / tau, which makes a new one per step of a sum. The last row is
    tau^(1/8), by which a step goes farther. Column 0 is not used. All tables have the
    length that the largest beta needs.

    >>> factors_of((0.5, 0.25))[0, :, 4].tolist()
    [0.0625, 0.234375, 0.00390625, 0.2490234375, 1.1892070770263672]
    """
    largest = max(map(max, pairs))
    steps = ceil(_VANISHING / log(largest)) if largest > 0 else 1
    waited = np.arange(1, min(steps + 2, _MOST_STEPS))
    tables = np.zeros((len(pairs), 5, len(waited) + 1))
    for table, betas in zip(tables, pairs, strict=True):
        for row, beta in zip((0, 2), betas, strict=True):
            left = np.cumprod(np.full(len(waited), beta))
            table[row, 1:], table[row + 1, 1:] = left, (1 - left) / waited
    tables[:, :4, -1] = 0
    tables[:, 4, 1:] = np.sqrt(np.sqrt(np.sqrt(waited)))
    return torch.from_numpy(tables.astype(np.float32))


def decays_of(pending: Decay) -> Tensor:
    """The products of the last n factors of decay, for n up to `LONGEST_DECAY`."""
    products = np.ones(LONGEST_DECAY + 1)
    products[1 : len(pending) + 1] = np.cumprod(pending[::-1])
    return torch.from_numpy(products.astype(np.float32))


def longer(pending: Decay, group: Mapping[str, Any]) -> Decay:
    """The pending factors of decay, with that of this step."""
    rate = float(group["lr"]) * group["weight_decay"]
    return (*pending, 1 - rate) if rate or pending else pending


class Rules:
    """Collects the rules of the parameters of one step, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, Decay], int] = {}
        self._numbers: list[tuple[float, ...]] = []
        self._places: list[tuple[int, int]] = []
        self._pairs: dict[tuple[float, float], int] = {}
        self._decays: list[Tensor] = []

    def add(self, group: Mapping[str, Any], step: int, pending: Decay) -> int:
        """The number of the rule of a parameter in its step `step`."""
        key = (id(group), step, pending)
        if key not in self._known:
            self._known[key] = len(self._numbers)
            beta1, beta2 = map(float, group["betas"])
            size = float(group["lr"]) / (1 - beta1**step)
            root = sqrt(1 - beta2**step)
            sign = -1 if group["maximize"] else 1
            numbers = (size, root, group["eps"], sign, step)
            self._numbers.append(numbers)
            pair = self._pairs.setdefault((beta1, beta2), len(self._pairs))
            self._places.append((pair, len(pending)))
            self._decays.append(decays_of(pending))
        return self._known[key]

    def of(self, which: Sequence[int]) -> AdamRules:
        """The tables for parameters that have these rules."""
        return AdamRules(
            torch.tensor(which, dtype=torch.int32),
            torch.tensor(self._numbers, dtype=torch.float32),
            torch.tensor(self._places, dtype=torch.int32),
            factors_of(*self._pairs),
            torch.stack(self._decays),
        )
