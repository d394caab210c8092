"""The tables that kernels of AdamW read: what depends on the steps waited, and rates.

Powers are products in float64, rounded to float32 at the end, so that they are the same
on every machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def decays_of(pending: Sequence[float]) -> Tensor:
    """The products of the last n factors of decay, for n up to `LONGEST_DECAY`."""
    products = np.ones(LONGEST_DECAY + 1)
    products[1 : len(pending) + 1] = np.cumprod(pending[::-1])
    return torch.from_numpy(products.astype(np.float32))


@dataclass(slots=True, eq=False)
class Cohort:
    """Parameters of a group, with the same count of steps and the same pending decay.

    `pending` is in the states of all of them; each step changes it in place.
    """

    number: int
    group: Mapping[str, Any]
    count: int
    pending: list[float]

    def begin(self) -> None:
        """Count a step and its decay."""
        self.count += 1
        rate = float(self.group["lr"]) * self.group["weight_decay"]
        if rate or self.pending:
            self.pending.append(1 - rate)

    @property
    def is_due(self) -> bool:
        """Whether pending decay is to be applied to all elements."""
        return len(self.pending) >= LONGEST_DECAY


def rules_of(cohorts: Sequence[Cohort], which: Tensor) -> AdamRules:
    """A rule for each cohort, for parameters that are in those which `which` says."""
    numbers, places = [], []
    pairs: dict[tuple[float, float], int] = {}
    for cohort in cohorts:
        group, step = cohort.group, cohort.count
        beta1, beta2 = map(float, group["betas"])
        size = float(group["lr"]) / (1 - beta1**step)
        root = sqrt(1 - beta2**step)
        sign = -1 if group["maximize"] else 1
        numbers.append((size, root, group["eps"], sign, step))
        pair = pairs.setdefault((beta1, beta2), len(pairs))
        places.append((pair, len(cohort.pending)))
    return AdamRules(
        which,
        torch.tensor(numbers, dtype=torch.float32),
        torch.tensor(places, dtype=torch.int32),
        factors_of(*pairs),
        torch.stack([decays_of(cohort.pending) for cohort in cohorts]),
    )
