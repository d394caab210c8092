"""What a card's rounds and bytes take, by rounds that were measured."""

from dataclasses import dataclass

from thinwire.cost import Cost, Curve, Rounds, along
from thinwire.tools.plan.choice import Choice


@dataclass(frozen=True, slots=True)
class Moves:
    """Seconds of the rounds of a reduction: however short, and for their bytes."""

    waits: float
    nbytes: float

    def __add__(self, other: "Moves") -> "Moves":
        return Moves(self.waits + other.waits, self.nbytes + other.nbytes)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.waits + self.nbytes


def moves(
    choice: Choice, size: int, ranks: int, rounds: Rounds, *, share: float = 1.0
) -> Moves:
    """Of the collective and of the guard, where so many ranks share a core.

    Rounds are measured with all ranks at work. On shared cores, those in which some
    ranks sleep take less.
    """
    own = _along(choice.own_cost(size, ranks), choice.own_rounds(rounds))
    awake = max(choice.awake(ranks), 1 / share)
    guard = _along(choice.guard_cost(size, ranks), rounds.exchange)
    return Moves(awake * own.waits, own.nbytes) + guard


def _along(cost: Cost, curve: Curve) -> Moves:
    """As if all rounds were alike."""
    if cost.rounds == 0:
        return Moves(0.0, 0.0)
    shortest = along(curve, 0)
    each = along(curve, (cost.nbytes + cost.awaited) / cost.rounds)
    return Moves(cost.rounds * shortest, cost.rounds * (each - shortest))
