"""Teams of ranks: the owners of blocks, and the exchange of blocks in a team."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from thinwire.channel import Run, Sealed
from thinwire.collectives.ledger import Ledger, select_and_seal_each
from thinwire.schedules import Step


@dataclass(frozen=True, slots=True)
class Team:
    """One rank's team: `number` of `count`, with `size` consecutive ranks.

    In every team, the rank at `position` owns the block of that number.
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


def reduce_scatter(
    run: Run, ledgers: Sequence[Ledger], budgets: Sequence[int], steps: Sequence[Step]
) -> None:
    """Spar-Reduce-Scatter: every block goes to its owner, cut to its budget on the way.

    Each rank selects a block once, right before the phase that sends it, from the sum
    of its own entries and those received. Afterwards the owner of a block still has to
    select it.
    """
    for phase, group in groupby(steps, key=lambda step: step.phase):
        together = list(group)
        leaving = [b for step in together for b in step.sends]
        lists = select_and_seal_each(
            [ledgers[b] for b in leaving], [budgets[b] for b in leaving], phase
        )
        sealed = dict(zip(leaving, lists, strict=True))
        for step in together:
            received = run.exchange([sealed[b] for b in step.sends])
            for b, each in zip(step.receives, received, strict=True):
                ledgers[b].receive(each.vector)


def all_gather(
    run: Run, mine: Sealed, position: int, steps: Sequence[Step]
) -> list[Sealed]:
    """Take the steps of Bruck's all-gather; returns every peer's list, in order."""
    held = {position: mine}
    for step in steps:
        received = run.exchange([held[number] for number in step.sends])
        held.update(zip(step.receives, received, strict=True))
    return [held[number] for number in sorted(held)]
