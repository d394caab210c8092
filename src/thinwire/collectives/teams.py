"""Teams of ranks: who owns which block, and how blocks travel to their owners."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinwire.channel import Bag
from thinwire.collectives.ledger import Ledger, emit_each


@dataclass(frozen=True, slots=True)
class Team:
    """Team `number` of `count`, of `size` neighbouring ranks, seen by one of them.

    The rank at a position owns the block of that number, in every team.
    """

    number: int
    count: int
    position: int
    size: int

    @classmethod
    def of(cls, rank: int, ranks: int, count: int) -> "Team":
        """The team of a rank, where `count` teams share `ranks`.

        >>> team = Team.of(rank=5, ranks=6, count=2)
        >>> team.number, team.position, list(team.members), list(team.owners)
        (1, 2, [3, 4, 5], [2, 5])
        """
        size = ranks // count
        return cls(rank // size, count, rank % size, size)

    @property
    def members(self) -> Sequence[int]:
        """The ranks of this team, in order of position."""
        return range(self.number * self.size, (self.number + 1) * self.size)

    @property
    def owners(self) -> Sequence[int]:
        """The ranks that own the same block, in order of team."""
        return range(self.position, self.count * self.size, self.size)

    def member(self, offset: int) -> int:
        """The rank so many positions on, around the team."""
        return self.members[(self.position + offset) % self.size]

    def blocks(self, offsets: Sequence[int]) -> list[int]:
        """The blocks at these offsets: those of the positions so far on."""
        return [(self.position + offset) % self.size for offset in offsets]

    @property
    def partners(self) -> Sequence[int]:
        """The owners to swap with, the farthest first; for a power of two of teams.

        >>> Team.of(rank=1, ranks=8, count=4).partners
        [5, 3]
        """
        distances = [self.count >> s for s in range(1, self.count.bit_length())]
        return [self.owners[self.number ^ distance] for distance in distances]


def bags(size: int) -> Iterator[tuple[int, range]]:
    """How far each message of a reduce-scatter goes, and which offsets it carries.

    The block at offset o of position r is block (r + o) mod `size`. A message that goes
    `distance` on lands at the offsets from 0 of whoever receives it.

    >>> [(distance, list(offsets)) for distance, offsets in bags(7)]
    [(4, [4, 5, 6]), (2, [2, 3]), (1, [1])]
    """
    for i in reversed(range((size - 1).bit_length())):
        yield 2**i, range(2**i, min(2 ** (i + 1), size))


def arrivals(
    ledgers: Sequence[Ledger], budgets: Sequence[int], team: Team
) -> list[Bag]:
    """What each message of a reduce-scatter brings, in turn."""
    found: list[Bag] = []
    for turn, (distance, offsets) in enumerate(bags(team.size)):
        blocks = team.blocks(range(len(offsets)))
        slots = [ledgers[b].slot(budgets[b], turn) for b in blocks]
        found.append((team.member(-distance), slots))
    return found


def reduce_scatter(
    ledgers: Sequence[Ledger], budgets: Sequence[int], team: Team
) -> None:
    """Spar-Reduce-Scatter: every block goes to its owner, cut to its budget on the way.

    A block is selected once by each rank, right before it leaves, from the sum of what
    the rank has and has received: its owner is left to select it.
    """
    incoming = arrivals(ledgers, budgets, team)
    for turn, (distance, offsets) in enumerate(bags(team.size)):
        leaving = team.blocks(offsets)
        bag = emit_each(
            [ledgers[b] for b in leaving], [budgets[b] for b in leaving], turn
        )
        src, slots = incoming[turn]
        dst = team.member(distance)
        received = ledgers[0].channel.exchange(bag, dst=dst, src=src, expect=slots)
        arriving = team.blocks(range(len(offsets)))
        for b, sealed in zip(arriving, received, strict=True):
            ledgers[b].receive(sealed.vector)
