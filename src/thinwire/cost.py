"""The vocabulary of the cost cards: rounds, bytes, and the link that carries them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What one rank pays for one reduction: the busiest rank where ranks differ.

    `nbytes` is what the rank sends, packet headers included, transport headers not.

    >>> Cost(rounds=2, nbytes=100) + Cost(rounds=1, nbytes=8)
    Cost(rounds=3, nbytes=108)
    """

    rounds: int = 0
    nbytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.rounds + other.rounds, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class Link:
    """One rank's full-duplex link: seconds per message, and bytes per second.

    >>> Link(latency=50e-6, bandwidth=125e6).seconds(Cost(rounds=2, nbytes=125_000))
    0.0011
    """

    latency: float = 0.0
    bandwidth: float = float("inf")

    def transfer(self, nbytes: int) -> float:
        """Seconds the link is busy with a message of `nbytes`."""
        return nbytes / self.bandwidth

    def seconds(self, cost: Cost) -> float:
        """The wire's share of a reduction that never waits for a slower peer."""
        return cost.rounds * self.latency + self.transfer(cost.nbytes)


def ring_all_reduce(nbytes: int, ranks: int) -> Cost:
    """A library all-reduce: a ring of reduce-scatter and all-gather.

    >>> ring_all_reduce(4000, 4)
    Cost(rounds=6, nbytes=6000)
    """
    if ranks == 1:
        return Cost()
    return Cost(2 * (ranks - 1), -(-2 * nbytes * (ranks - 1) // ranks))


def direct_all_gather(nbytes: int, ranks: int) -> Cost:
    """Every rank's `nbytes` to every other rank, one peer per round.

    >>> direct_all_gather(1000, 4)
    Cost(rounds=3, nbytes=3000)
    """
    return Cost(ranks - 1, nbytes * (ranks - 1))


def at_once(*costs: Cost) -> Cost:
    """What is in flight together shares the rounds.

    >>> at_once(ring_all_reduce(4000, 4), ring_all_reduce(16, 4))
    Cost(rounds=6, nbytes=6024)
    """
    rounds = max((cost.rounds for cost in costs), default=0)
    return Cost(rounds, sum(cost.nbytes for cost in costs))
