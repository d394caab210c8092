"""Indices in a Bloom filter: 1.44 log2(10 / density) bits each, and some are wrong.

DeepReduce (Xu et al., NeurIPS 2021, section 4): a receiver tests every element of the
vector. The positives are all encoded elements and some others, one for every ten by
default. The policy selects the list from the positives. The sender applies the same
policy and sends the true values of the elements that the receiver will select.

It takes more bits than an exact list (`Rice`) at any density, and decoding scans the
whole vector: it is here for comparison.
"""

import math
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple, Self

from torch import Tensor

from thinwire import kernels
from thinwire.arguments import is_number
from thinwire.codecs.codec import IndexCodec, checked
from thinwire.errors import ConfigError, WireError

_TAGS = {"p0": 16, "p1": 17, "p2": 18, "leftmost": 19, "naive": 20}
POLICIES = tuple(_TAGS)
_SMALLEST_FPR = 2.0**-40

# Decimal logarithms are specified to be rounded correctly, unlike powers, so they are
# the same on every machine. A number of bits has 10 of the 30 digits.
_EXACTLY = Context(prec=30)
_ROUGHLY = Context(prec=12)
_LN2 = _EXACTLY.ln(Decimal(2))
_LN2_SQUARED = _EXACTLY.multiply(_LN2, _LN2)


@dataclass(frozen=True, slots=True)
class Bloom(IndexCodec):
    """A Bloom filter, and a policy that chooses among its positives.

    - `p0` selects all positives, so more values are sent than were listed;
    - `p1` selects nnz of them at random;
    - `p2` selects nnz, first those that are the only positive with some bit;
    - `leftmost` selects the first nnz;
    - `naive` selects the same, but sends the listed values: after the first false
      positive all are in the wrong place.

    `fpr` is the rate of false positives; by default a tenth of the density.
    """

    policy: str = "p2"
    fpr: float | None = None
    key: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(
                f"policy is {self.policy!r}: give one of {', '.join(POLICIES)}"
            )
        if self.fpr is not None and not _is_rate(self.fpr):
            raise ConfigError(
                f"fpr is {self.fpr!r}: give the rate of false positives, "
                "from 2**-40 to below 1"
            )

    @property
    def tag(self) -> int:
        return _TAGS[self.policy]

    @property
    def regathers(self) -> bool:  # type: ignore[override]
        return self.policy != "naive"

    def with_key(self, key: int) -> Self:
        return replace(self, key=key)

    def nbytes(self, size: int, nnz: int) -> int | None:
        # The filter's own length is known, but not how many values p0 will send.
        return None if self.policy == "p0" else self._shape(size, nnz).nbytes

    def encode(self, indices: Tensor, size: int) -> Tensor:
        shape = self._shape(size, len(indices))
        return kernels.encode_bloom(indices, shape.bits, shape.hashes)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        first = self.policy in ("leftmost", "naive")
        with checked("a Bloom filter"):
            bits, hashes, most = self._shape(size, nnz)
            positives = kernels.bloom_positives(
                section, size, nnz if first else most + 1, bits=bits, hashes=hashes
            )
        if not nnz <= len(positives) <= most:
            few = len(positives) < nnz
            said = f"only {len(positives)}" if few else f"more than {most}"
            raise WireError(
                f"a Bloom filter: {said} of {size} elements answer for {nnz}"
            )
        if self.policy == "p1":
            return kernels.bloom_sample(positives, nnz, self.key)
        if self.policy == "p2":
            return kernels.bloom_resolve(
                positives, nnz, self.key, bits=bits, hashes=hashes
            )
        return positives

    def _shape(self, size: int, nnz: int) -> "Shape":
        if size > 2**32:
            raise ConfigError(
                f"a vector of {size} elements has indices beyond the 32 bits that are "
                'hashed; use scope="bucket" so that it is reduced in parts'
            )
        return shape_of(size, nnz, self.fpr)


class Shape(NamedTuple):
    """The bits and hashes of a filter, and the most positives that are accepted."""

    bits: int
    hashes: int
    most: int

    @property
    def nbytes(self) -> int:
        """The length of a section."""
        return -(-self.bits // 8)


def _is_rate(fpr: object) -> bool:
    return is_number(fpr, least=_SMALLEST_FPR, below=1.0)


@lru_cache(maxsize=1024)
def shape_of(size: int, nnz: int, fpr: float | None = None) -> Shape:
    """The filter for `nnz` of `size` elements; sender and receiver both compute it.

    ceil(log2(1 / fpr)) hashes and ceil(log2(1 / fpr) nnz / ln 2) bits.

    >>> shape_of(16, 5, 0.1)
    Shape(bits=24, hashes=4, most=16)
    >>> shape_of(2**24, 167772)
    Shape(bits=2412157, hashes=10, most=304169)
    """
    if nnz == 0:
        return Shape(0, 0, 0)
    rate, unit = (nnz, 10 * size) if fpr is None else fpr.as_integer_ratio()
    # The least h for which 2**h * rate >= unit.
    hashes = (-(-unit // rate) - 1).bit_length()
    reciprocal = _EXACTLY.divide(Decimal(unit), Decimal(rate))
    per_entry = _EXACTLY.divide(_EXACTLY.ln(reciprocal), _LN2_SQUARED)
    bits = math.ceil(_EXACTLY.multiply(per_entry, Decimal(nnz)))
    if bits >= 2**32:
        raise ConfigError(
            f"a Bloom filter for {nnz} entries takes {bits} bits, more than a hash "
            "can tell apart; lower the density or give a larger fpr"
        )
    return Shape(bits, hashes, _most(size, nnz, bits, hashes))


def _most(size: int, nnz: int, bits: int, hashes: int) -> int:
    """The most positives that a filter may have; with more it is refused as damaged.

    nnz + 64 + eight times the expected false positives. For these, the share of bits
    that are set is taken as four standard deviations above its mean, within bounds.
    """
    load = _ROUGHLY.divide(Decimal(hashes * nnz), Decimal(bits))
    mean = 1 - float(_ROUGHLY.exp(_ROUGHLY.minus(load)))
    deviation = math.sqrt(mean * (1 - mean) / bits)
    fill = min(mean + 4 * deviation, float(load), 1.0)
    others = math.prod([fill] * hashes) * (size - nnz)
    return min(size, nnz + 64 + math.ceil(8 * others))
