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
from numpy.typing import NDArray
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
    (1 - beta^tau) / tau, which makes a new one per step of a sum. Then tau^(1/8), by
    which a step goes farther, and what the least energy of a step is of a gradient's
    square. Column 0 is not used. All tables have the length that the largest beta
    needs.

    >>> factors_of((0.5, 0.75))[0, :4, 4].tolist()
    [0.0625, 0.234375, 0.31640625, 0.1708984375]
    >>> factors_of((0.5, 0.75))[0, 4:, 4].tolist()
    [1.1892070770263672, 0.2197265625]
    """
    largest = max(map(max, pairs))
    steps = ceil(_VANISHING / log(largest)) if largest > 0 else 1
    waited = np.arange(1, min(steps + 2, _MOST_STEPS))
    tables = np.zeros((len(pairs), 6, len(waited) + 1))
    for table, betas in zip(tables, pairs, strict=True):
        for row, beta in zip((0, 2), betas, strict=True):
            left = np.cumprod(np.full(len(waited), beta))
            table[row, 1:], table[row + 1, 1:] = left, (1 - left) / waited
        table[5, 1:] = _least(*betas, table) / waited
    tables[:, [0, 1, 2, 3, 5], -1] = 0
    tables[:, 4, 1:] = np.sqrt(np.sqrt(np.sqrt(waited)))
    return torch.from_numpy(tables.astype(np.float32))


def _least(
    beta1: float, beta2: float, table: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share of a delivery's energy per step that its step counts with, at least.

    The share in v is 1 - beta2^tau. After a few steps that is little compared with the
    delivery's weight in m, and where gradients grow v has nothing else. A step of AdamW
    goes as far as (1 - beta1) / sqrt(1 - beta2), or 1 if that is more; a delivery shall
    go no farther, at its rate. Zero where it does not, as after one step.
    """
    farthest = max(1.0, (1 - beta1) / sqrt(1 - beta2))
    share = ((1 - table[0, 1:]) / farthest) ** 2
    share[0] = 0
    return np.where(share > 1 - table[2, 1:], share, 0)


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
