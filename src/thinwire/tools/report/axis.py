"""An axis: where a number lies between two places, and its round numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_STEPS = (1, 2, 2.5, 5, 10)
_NEAR = 0.1  # of what the numbers span


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high`, drawn from `start` to `end`.

    >>> Axis(0.0, 10.0, 100.0, 200.0).at(2.5)
    125.0
    >>> Axis(1.0, 100.0, 0.0, 10.0, log=True).at(10.0)
    5.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(
        cls, numbers: Sequence[float], start: float, end: float, *, log: bool = False
    ) -> "Axis":
        """All of the numbers, with a little room; it begins at a zero that is near.

        >>> Axis.around([1.0, 25.0], 0.0, 1.0).low, Axis.around([20, 30], 0, 1).low
        (0.0, 19.6)
        """
        if log:
            positive = [number for number in numbers if number > 0] or [1.0]
            return cls(min(positive) / 1.15, max(positive) * 1.15, start, end, log=True)
        low, high = min(numbers, default=0.0), max(numbers, default=1.0)
        room = 0.04 * (high - low) or abs(high) / 2 or 1.0
        is_near = 0 <= low <= _NEAR * (high - low)
        return cls(0.0 if is_near else low - room, high + room, start, end)

    def at(self, number: float) -> float:
        """The place of a number; one beyond an end is at that end."""
        scale = log10 if self.log else float
        low, high = scale(self.low), scale(self.high)
        share = (scale(min(max(number, self.low), self.high)) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within, about `most` of them.

        >>> Axis(0.0, 1.0, 0.0, 1.0).ticks(5)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Axis(3.0, 500.0, 0.0, 1.0, log=True).ticks()
        [3.0, 10.0, 30.0, 100.0, 300.0]
        """
        if self.log:
            found = self._powers(most)
            if len(found) > 1:
                return found
        rough = (self.high - self.low) / most
        power = 10.0 ** floor(log10(rough))
        step = next(power * each for each in _STEPS if power * each >= rough)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [round(count * step, 12) for count in range(first, last + 1)]

    def _powers(self, most: int) -> list[float]:
        exponents = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        inside: list[float] = []
        for digits in ((1,), (1, 3), (1, 2, 5)):
            found = [each * 10.0**exponent for exponent in exponents for each in digits]
            kept = [number for number in found if self.low <= number <= self.high]
            if inside and len(kept) > most:
                break
            inside = kept
            if len(inside) > most / 2:
                break
        return inside


def plain(number: float) -> str:
    """A number without needless digits.

    >>> plain(1000.0), plain(0.5), plain(20_000.0), plain(1.23456)
    ('1000', '0.5', '20000', '1.235')
    """
    return f"{number:.10g}" if number == round(number) else f"{number:.4g}"
