"""Cost: the rounds and bytes of a reduction; Link: the time they take."""

from dataclasses import dataclass, field

from thinwire.arguments import is_number, is_whole
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one reduction, of the busiest rank.

    `nbytes` is what the rank sends, packet headers included, transport headers not.
    `awaited` is what it receives in rounds in which it sends nothing: these bytes take
    time too. Comparisons ignore it.

    >>> Cost(rounds=2, nbytes=100) + Cost(rounds=1, nbytes=8)
    Cost(rounds=3, nbytes=108)
    """

    rounds: int = 0
    nbytes: int = 0
    awaited: int = field(default=0, compare=False, repr=False)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rounds + other.rounds,
            self.nbytes + other.nbytes,
            self.awaited + other.awaited,
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One rank's full-duplex link: seconds per message, and bytes per second.

    `burst` bytes cross at once after the link was idle for long enough to have carried
    them: so do links that a token bucket slows down, in a lab or a cloud.

    >>> Link(latency=50e-6, bandwidth=125e6).seconds(Cost(rounds=2, nbytes=125_000))
    0.0011
    """

    latency: float = 0.0
    bandwidth: float = float("inf")
    burst: int = 0

    def __post_init__(self) -> None:
        unlimited = self.bandwidth == float("inf")
        if not (
            is_number(self.latency, least=0.0)
            and (unlimited or is_number(self.bandwidth, above=0.0))
            and is_whole(self.burst, least=0)
        ):
            raise ConfigError(
                f"the link is {self}: give seconds of latency and a burst in bytes, 0 "
                "or more, and a bandwidth in bytes per second, above 0"
            )

    def transfer(self, nbytes: int) -> float:
        """Seconds that the link is busy with a message of `nbytes`."""
        return nbytes / self.bandwidth

    def seconds(self, cost: Cost, *, idle: float = 0.0) -> float:
        """The seconds that a reduction takes on the wire, if its rounds do not overlap.

        The bucket is full before the first round, and fills up again in the `idle`
        seconds that ranks compute between the others, spread evenly.

        >>> link = Link(bandwidth=100.0, burst=50)
        >>> cost = Cost(rounds=2, nbytes=200)
        >>> link.seconds(cost), link.seconds(cost, idle=0.1), link.seconds(cost, idle=9)
        (1.5, 1.4, 1.0)
        """
        nbytes = cost.nbytes + cost.awaited
        pause = idle / max(cost.rounds - 1, 1)
        refilled = min(self.burst, self.bandwidth * pause) if self.burst else 0
        spared = self.burst + max(cost.rounds - 1, 0) * refilled
        return cost.rounds * self.latency + max(0.0, nbytes - spared) / self.bandwidth


def ring_all_reduce(nbytes: int, ranks: int) -> Cost:
    """A library all-reduce: a ring of reduce-scatter and all-gather.

    >>> ring_all_reduce(4000, 4)
    Cost(rounds=6, nbytes=6000)
    """
    if ranks == 1:
        return Cost()
    return Cost(2 * (ranks - 1), -(-2 * nbytes * (ranks - 1) // ranks))


def max_reduce(nbytes: int, ranks: int) -> Cost:
    """A maximum by dissemination: the whole buffer, to one peer per round.

    >>> max_reduce(24, 8), max_reduce(24, 5)
    (Cost(rounds=3, nbytes=72), Cost(rounds=3, nbytes=72))
    """
    rounds = (ranks - 1).bit_length()
    return Cost(rounds, nbytes * rounds)


def direct_all_gather(nbytes: int, ranks: int) -> Cost:
    """Every rank's `nbytes` to every other rank, one peer per round.

    >>> direct_all_gather(1000, 4)
    Cost(rounds=3, nbytes=3000)
    """
    return Cost(ranks - 1, nbytes * (ranks - 1))


def at_once(*costs: Cost) -> Cost:
    """The cost of operations that are in flight together: they share the rounds.

    >>> at_once(ring_all_reduce(4000, 4), max_reduce(16, 4))
    Cost(rounds=6, nbytes=6032)
    """
    rounds = max((cost.rounds for cost in costs), default=0)
    return Cost(rounds, sum(cost.nbytes for cost in costs))


Curve = tuple[tuple[int, float], ...]
"""Bytes and seconds, both increasing: points of a measured line."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of a round by the bytes that every rank sends in it.

    `exchange` is for packets to one peer, `direct` for packets to all peers at once (a
    round for each of them), `all_reduce` for the library's ring.
    """

    exchange: Curve
    direct: Curve
    all_reduce: Curve
