"""FixedPoint: floats as integer multiples of a power of two, to sum them exactly."""

from dataclasses import dataclass
from math import frexp

from torch import Tensor

_LEAST = -149  # float32 has no finer multiples


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Multiples of 2**exponent in int32, small enough that `ranks` of them add up.

    >>> import torch
    >>> point = FixedPoint.of(peak=3.0, ranks=4)
    >>> point.exponent, point.holds(4.0), point.holds(4.5)
    (-26, True, False)
    >>> point.lost(peak=3.0), point.lost(peak=0.5)
    (0, 2)
    >>> values = torch.tensor([3.0, -1.5 - 2**-20, 2**-27])
    >>> point.value(point.multiples(values)).tolist()
    [3.0, -1.5000009536743164, 0.0]
    """

    exponent: int
    bits: int

    @classmethod
    def of(cls, peak: float, ranks: int, spare: int = 0) -> "FixedPoint":
        """For values up to `peak`, with `spare` bits for larger ones."""
        bits = ((2**31 - 1) // ranks).bit_length() - 1
        return cls(max(frexp(peak)[1] + spare - bits, _LEAST), bits)

    def holds(self, peak: float) -> bool:
        """Whether sums of values up to `peak` cannot overflow."""
        return peak <= 2.0 ** (self.exponent + self.bits)

    def lost(self, peak: float) -> int:
        """The bits that this point loses, compared with `FixedPoint.of(peak)`."""
        if peak == 0.0:
            return 0
        return self.exponent - max(frexp(peak)[1] - self.bits, _LEAST)

    def multiples(self, values: Tensor) -> Tensor:
        """The nearest multiples, ties to even; arbitrary ones where `holds` is False.

        The rounding errors are float32 too: subtracting the multiples' value is exact.
        """
        # In float64, where 2**149 is a number.
        scaled = values.double().mul_(2.0**-self.exponent).round_()
        return scaled.clamp_(-(2.0**self.bits), 2.0**self.bits).int()

    def value(self, multiples: Tensor) -> Tensor:
        """Multiples or their sums as float32, rounded once."""
        return multiples.double().mul_(2.0**self.exponent).float()
