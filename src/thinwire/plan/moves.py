"""What a card's rounds and bytes take, by rounds that were measured."""

from dataclasses import dataclass

from thinwire.cost import Cost, Curve, Rounds, along
from thinwire.plan.choice import Choice


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


def moves(choice: Choice, size: int, ranks: int, rounds: Rounds) -> Moves:
    """Of the collective and of the guard."""
    own = _along(choice.own_cost(size, ranks), choice.own_rounds(rounds))
    return own + _along(choice.guard_cost(size, ranks), rounds.exchange)


def _along(cost: Cost, curve: Curve) -> Moves:
    """As if all rounds were alike."""
    if cost.rounds == 0:
        return Moves(0.0, 0.0)
    shortest = along(curve, 0)
    each = along(curve, (cost.nbytes + cost.awaited) / cost.rounds)
    return Moves(cost.rounds * shortest, cost.rounds * (each - shortest))
