"""The time of a cost's rounds and bytes, by rounds that were measured."""

from dataclasses import dataclass

from thinwire.cost import Cost, Curve, Rounds, along
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
    shortest = along(curve, 0)
    each = along(curve, (cost.nbytes + cost.awaited) / cost.rounds)
    return TransportTime(cost.rounds * shortest, cost.rounds * (each - shortest))
