"""The time of a cost's rounds and bytes, by rounds that were measured."""

from dataclasses import dataclass

from thinwire.cost import Cost, Curve, Rounds
from thinwire.tools.plan.choice import Choice


@dataclass(frozen=True, slots=True)
class TransportTime:
    """Seconds of the rounds of a reduction: of empty messages, and for their bytes."""

    waits: float
    nbytes: float

    def __add__(self, other: "TransportTime") -> "TransportTime":
        return TransportTime(self.waits + other.waits, self.nbytes + other.nbytes)

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.waits + self.nbytes


def transport_time(
    choice: Choice, size: int, ranks: int, rounds: Rounds, *, share: float = 1.0
) -> TransportTime:
    """The time of the collective and of the guard, with `share` ranks for each core.

    Rounds are measured with all ranks at work. On shared cores, those in which some
    ranks sleep take less.
    """
    own = _along(choice.own_cost(size, ranks), choice.own_rounds(rounds))
    awake = max(choice.awake(ranks), 1 / share)
    guard = _along(choice.guard_cost(size, ranks), rounds.exchange)
    return TransportTime(awake * own.waits, own.nbytes) + guard


def _along(cost: Cost, curve: Curve) -> TransportTime:
    """The time of rounds of equal length."""
    if cost.rounds == 0:
        return TransportTime(0.0, 0.0)
    shortest = interpolate(curve, 0)
    each = interpolate(curve, (cost.nbytes + cost.awaited) / cost.rounds)
    return TransportTime(cost.rounds * shortest, cost.rounds * (each - shortest))


def interpolate(curve: Curve, nbytes: float) -> float:
    """Seconds for a number of bytes, by interpolation or, at the end, extrapolation.

    >>> curve = ((0, 1.0), (100, 2.0), (200, 4.0))
    >>> interpolate(curve, 0), interpolate(curve, 50), interpolate(curve, 300)
    (1.0, 1.5, 6.0)
    """
    if len(curve) == 1 or nbytes <= curve[0][0]:
        return curve[0][1]
    later = next((i for i, (end, _) in enumerate(curve) if end >= nbytes), -1)
    (start, first), (end, last) = curve[later - 1], curve[later]
    return first + (last - first) * (nbytes - start) / (end - start)
