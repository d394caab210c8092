"""The guard: ranks agree that a gradient is finite before they accumulate it.

One small all-reduce with MAX carries the largest |g| of every rank (NaN counts as
infinity) and the settings that must be equal on all ranks. It costs one pass that reads
the gradient and ceil(log2 P) rounds of a few bytes.
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

# Gradients of this magnitude, summed over the ranks, count as infinite. A residual can
# then add up a million steps without overflow, from which it would never recover.
LIMIT = torch.finfo(torch.float32).max / 2**20


@dataclass(frozen=True, slots=True)
class GuardResult:
    """Whether the gradient is finite on all ranks, and which segments are nonzero.

    `used[i]` is False if segment i is zero on every rank.
    """

    finite: bool
    used: Sequence[bool]


def agree(
    grad: Sequence[Tensor],
    bounds: Sequence[Tensor] | None,
    group: Group,
    settings: Mapping[str, float],
    *,
    unused: Sequence[int] = (),
) -> GuardResult:
    """Check a gradient on all ranks before it is reduced.

    `bounds` gives the edges of the segments of each piece; without it the gradient is
    one segment. Segments that are `unused` count as zero here, unless they are not
    finite. Raises an `AgreementError` if a setting differs between ranks.
    """
    peaks = kernels.fetch(_peaks(grad, bounds))
    for segment in unused if bounds is not None else ():
        if float(peaks[segment]) * group.size < LIMIT:
            peaks[segment] = 0.0
    return compare(peaks, group, settings)


def compare(peaks: Tensor, group: Group, settings: Mapping[str, float]) -> GuardResult:
    """`agree` for a caller that has the largest |g| of each segment."""
    own = list(settings.values())
    segments, count = peaks.numel(), len(own)
    sent = [*peaks.tolist(), *own, *(-value for value in own)]
    buffer = torch.tensor(sent, dtype=torch.float64)
    group.all_reduce_((buffer, Op.MAX))
    found = buffer.tolist()
    largest, highest = found[:segments], found[segments : segments + count]
    # Subtracted, not negated: an error message would show -0.0.
    _check_equal(settings, highest, [0.0 - low for low in found[segments + count :]])
    finite = all(peak * group.size < LIMIT for peak in largest)
    return GuardResult(finite, [peak > 0 for peak in largest])


def cost(segments: int, settings: int, ranks: int) -> Cost:
    """The cost of the guard."""
    return max_reduce(8 * (segments + 2 * settings), ranks)


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


def _check_equal(
    settings: Mapping[str, float], highest: Sequence[float], lowest: Sequence[float]
) -> None:
    for name, high, low in zip(settings, highest, lowest, strict=True):
        if high != low:
            raise AgreementError(
                f"ranks disagree on {name}: from {low} to {high} (here "
                f"{settings[name]}); set the same value on every rank before the same "
                "step"
            )
