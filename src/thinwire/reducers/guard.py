"""Finite first: before anything is accumulated, the ranks agree that they may.

One tiny all-reduce with MAX carries the largest |g| of every rank (NaN counts as
infinity) and whatever else must be alike everywhere. It costs a reading pass over the
gradient and ceil(log2 P) rounds of a few bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.cost import Cost, max_reduce
from thinwire.errors import AgreementError
from thinwire.groups import Group, Op

# Gradients of this magnitude, summed over the ranks, count as infinite: residuals then
# have room for a million steps before a sum could overflow and never recover.
LIMIT = torch.finfo(torch.float32).max / 2**20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ranks found: is the gradient finite, and which segments are in use.

    `used[i]` is False where segment i is zero on every rank.
    """

    finite: bool
    used: Sequence[bool]


def agree(
    grad: Sequence[Tensor],
    bounds: Sequence[Tensor] | None,
    group: Group,
    claims: Mapping[str, float],
) -> Verdict:
    """Compare notes before a reduction.

    `bounds` gives the edges of the segments of each piece; without, the gradient is
    one segment. `claims` are settings that every rank must hold alike, by name.
    """
    return compare(kernels.fetch(_peaks(grad, bounds)), group, claims)


def compare(peaks: Tensor, group: Group, claims: Mapping[str, float]) -> Verdict:
    """The round itself, about peaks that are known: one of each segment."""
    held = list(claims.values())
    segments, told = peaks.numel(), len(held)
    noted = [*peaks.tolist(), *held, *(-claim for claim in held)]
    note = torch.tensor(noted, dtype=torch.float64)
    group.all_reduce_((note, Op.MAX))
    found = note.tolist()
    largest, highest = found[:segments], found[segments : segments + told]
    # Subtracted: a message should not say -0.0.
    _compare(claims, highest, [0.0 - low for low in found[segments + told :]])
    finite = all(peak * group.size < LIMIT for peak in largest)
    return Verdict(finite, [peak > 0 for peak in largest])


def cost(segments: int, claims: int, ranks: int) -> Cost:
    """The guard's card."""
    return max_reduce(8 * (segments + 2 * claims), ranks)


def _peaks(grad: Sequence[Tensor], bounds: Sequence[Tensor] | None) -> Tensor:
    """The largest |g| of each segment, or of all."""
    if not grad:
        return torch.zeros(1 if bounds is None else 0)
    if bounds is not None:
        pairs = zip(grad, bounds, strict=True)
        return torch.cat([kernels.magnitudes(piece, edges) for piece, edges in pairs])
    whole = [kernels.magnitudes(piece, _ends(piece.numel())) for piece in grad]
    return whole[0] if len(whole) == 1 else torch.cat(whole).amax(dim=0, keepdim=True)


@lru_cache(maxsize=1024)
def _ends(size: int) -> Tensor:
    return torch.tensor([0, size])


def _compare(
    claims: Mapping[str, float], highest: Sequence[float], lowest: Sequence[float]
) -> None:
    for name, high, low in zip(claims, highest, lowest, strict=True):
        if high != low:
            raise AgreementError(
                f"ranks disagree on {name}: from {low} to {high} (here "
                f"{claims[name]}); set it alike on every rank before the same step"
            )
