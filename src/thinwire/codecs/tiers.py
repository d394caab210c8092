"""Values as a sign and a tier, each tier the top share of the one below: 1.7 to 3 bits.

All values are in the lowest tier; the largest of them, one in `share`, are in the next,
of these again one in `share`, and so on. A value comes back as its sign and the mean
magnitude of its highest tier. The magnitudes of a top-k list fall off about
exponentially, or slower. So a tier spans about as much as the one below on a linear
scale, or on a logarithmic one: equal shares of values are good levels for either.

Which values of a tier are in the next is an Elias-Fano list, or a bitmap from a quarter
on. With the signs, that is 3 bits a value where the share is a half, 2.33 for a quarter
and 1.71 for an eighth. The length follows from the number of values.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, checked
from thinwire.codecs.elias_fano import EliasFano
from thinwire.errors import ConfigError

LEAST, MOST = 2, 16

_INFINITY = 0x7F80  # as the bits of a bfloat16
# A sum's unit is 2**-28 of the largest power of two in the list, a level's is 2**-20:
# 2**32 magnitudes of less than 2**29 units fit in 63 bits, and the levels of whole
# numbers can be added up exactly.
_SUM_BITS, _LEVEL_BITS = 28, 20


@dataclass(frozen=True, slots=True)
class Tiers(ValueCodec):
    """A bfloat16 for each tier, a sign for each value, and who is in the next tier.

    The error is never larger than the values, in L2 norm: a level is the mean of the
    magnitudes it stands for. It is a multiple of 2**-20 of the largest power of two in
    the list, so values far below may come back as 0. Values that are not finite count
    as 0.
    """

    share: int = 8
    always_finite = True

    def __post_init__(self) -> None:
        if not LEAST <= self.share <= MOST:
            raise ConfigError(
                f"share is {self.share}: one value in {LEAST} to {MOST} is in the next "
                "tier"
            )

    @property
    def tag(self) -> int:
        return 32 + self.share

    def nbytes(self, nnz: int) -> int:
        counts = tier_sizes(nnz, self.share)
        marks = sum(EliasFano().nbytes(*pair) for pair in pairwise(counts))
        return 2 * len(counts) + -(-nnz // 8) + marks

    def encode(self, values: Tensor) -> Tensor:
        if len(values) == 0:
            return torch.empty(0, dtype=torch.uint8, device=values.device)
        tier = values.nan_to_num(0.0, 0.0, 0.0)
        units, unit = _in_units(tier)
        counts = tier_sizes(len(values), self.share)
        sums, marks = [units.sum()], []
        for size, count in pairwise(counts):
            places, tier = kernels.select(tier, count)
            marks.append(EliasFano().encode(places, size))
            units = units[places.long()]
            sums.append(units.sum())
        levels = kernels.to_bfloat16(_means(counts, sums).mul_(unit).float())
        signs = kernels.pack_bits(values.signbit().long(), 1)
        return torch.cat([levels.view(torch.uint8), signs, *marks])

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return self.decode_deferring(section, nnz, None)

    def decode_deferring(
        self, section: Tensor, nnz: int, errors: Tensor | None
    ) -> Tensor:
        counts = tier_sizes(nnz, self.share)
        with checked("Tiers"):
            kernels.check_length(section, 8 * self.nbytes(nnz))
            start, end = 2 * len(counts), 2 * len(counts) + -(-nnz // 8)
            levels = _checked_levels(section[:start])
            negative = _read_signs(section[start:end], nnz)
        values = levels[:1].expand(nnz).contiguous()
        places: Tensor | None = None  # among all values; in the lowest tier are all
        for tier, (size, count) in enumerate(pairwise(counts), start=1):
            start, end = end, end + EliasFano().nbytes(size, count)
            marks = section[start:end]
            found = EliasFano().decode_deferring(marks, size, count, errors).long()
            places = found if places is None else places[found]
            values[places] = levels[tier]
        return values.mul_(1 - 2 * negative)


@lru_cache(maxsize=1024)
def tier_sizes(nnz: int, share: int) -> tuple[int, ...]:
    """How many values are in each tier, from the lowest, which has all, up.

    >>> tier_sizes(368, 8), tier_sizes(5, 2), tier_sizes(0, 2)
    ((368, 46, 5), (5, 2, 1), ())
    """
    counts = []
    while nnz:
        counts.append(nnz)
        nnz //= share
    return tuple(counts)


def _in_units(values: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes as whole numbers, so that sums do not depend on the order.

    Also returns the unit of a level. Both units are powers of two, as float64.
    """
    largest = values.abs().max().view(torch.int32).long() >> 23  # its exponent
    largest.clamp_(min=1)
    unit = ((largest + 1023 - 127 - _LEVEL_BITS) << 52).view(torch.float64)
    per_unit = ((1023 + 127 + _SUM_BITS - largest) << 52).view(torch.float64)
    return values.double().mul_(per_unit).long().abs_(), unit


def _means(counts: tuple[int, ...], sums: list[Tensor]) -> Tensor:
    """The mean magnitude of what is in a tier and not in the next, in whole units."""
    totals = torch.stack(sums)
    totals[:-1] -= totals[1:].clone()
    own = [size - above for size, above in pairwise((*counts, 0))]
    units = torch.tensor(own, device=totals.device) << (_SUM_BITS - _LEVEL_BITS)
    means = (totals + (units >> 1)) // units
    # Rounded up from below, the largest of all magnitudes would be infinite.
    return means.clamp_(max=(2 << _LEVEL_BITS) - 1).double()


def _checked_levels(section: Tensor) -> Tensor:
    levels = section.view(torch.int16)
    finite = bool(((levels >= 0) & (levels < _INFINITY)).all())
    if not finite or bool((levels[1:] < levels[:-1]).any()):
        raise ValueError("levels that are not finite and ascending from 0 on")
    return levels.view(torch.bfloat16).float()


def _read_signs(section: Tensor, nnz: int) -> Tensor:
    """1 for each negative value, else 0."""
    bits = kernels.unpack_bits(section, 8 * len(section), 1)
    if bool(bits[nnz:].any()):
        raise ValueError("bits that are set after the end")
    return bits[:nnz].float()
