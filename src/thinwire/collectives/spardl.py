"""SparDL: reduce-scatter and all-gather of sparse blocks that never grow.

Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse
Communication" (arXiv 2304.00737). P ranks form d teams of Q. Inside a team every block
of the vector reaches its owner in ceil(log2 Q) messages. A rank adds what it received
of a block and cuts the sum to the block's budget right before it sends it. Owners of
the same block in different teams agree on one list; a team then gathers the blocks of
its owners. What a rank cuts off stays in its residual.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from thinwire import schedules
from thinwire.accumulator import Accumulator
from thinwire.arguments import is_whole
from thinwire.channel import Channel, ListSpec, Run, Sealed
from thinwire.codecs import Codec, Split
from thinwire.collectives import doubling
from thinwire.collectives.collective import (
    MakeBuffer,
    Selecting,
    check_choice,
    packet_nbytes,
)
from thinwire.collectives.ledger import Holders, Ledger
from thinwire.collectives.length_controller import LengthController, SparDLMemory
from thinwire.collectives.memory import CollectiveMemory, checked
from thinwire.collectives.teams import Team, all_gather, reduce_scatter
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError
from thinwire.kernels import Block, contiguous_blocks, interleaved_blocks
from thinwire.layout import Layout
from thinwire.schedules import Step
from thinwire.sparse import SparseVector, keep_count, sum_of

Gather = Literal["auto", "recursive", "bruck"]
Partition = Literal["interleaved", "contiguous"]
Scatter = Literal["auto", "halving", "direct"]

# Elements of a chunk of an interleaved block. Shorter ones cost speed, longer ones
# sample the layers less evenly: docs/experiments/notebook.md has both measured.
CHUNK = 1024
FEW = 16

# Up to so many owners the messages of a direct scatter cost little.
FEW_OWNERS = 8

# The phase of the lists that a team gathers.
_FINAL = -1


@dataclass(frozen=True, slots=True)
class SparDL(Selecting):
    """Top `density` of every block, any number of ranks, `teams` that divide them.

    `gather` is how teams agree: by recursive doubling (a power of two of them), or by
    Bruck's all-gather of shorter lists (any number). "interleaved" blocks take chunks
    of the vector in turn, so that every layer is in every block; "contiguous" ones are
    the paper's. `scatter` is how blocks reach their owners: "halving" in
    ceil(log2 Q) messages that are cut on the way, as published; "direct" in Q - 1
    messages of the same bytes in all, from which nothing is cut before the owner adds
    them up: what it selects is nearer to the top k of the sum; "auto" is direct for
    few owners. `teams="auto"` takes what is fastest on `link`, or, without one, 2 for
    an even number of ranks: a round less for the same bytes.
    """

    teams: int | Literal["auto"] = 1
    gather: Gather = "auto"
    partition: Partition = "interleaved"
    link: Link | None = None
    scatter: Scatter = "auto"

    def __post_init__(self) -> None:
        # Not super(): it fails in dataclasses with slots.
        Selecting.__post_init__(self)
        if not _names_teams(self.teams):
            raise ConfigError(
                f"teams is {self.teams!r}: give a number that divides the number of "
                "ranks, or 'auto'"
            )
        check_choice("gather", self.gather, Gather)
        check_choice("partition", self.partition, Partition)
        check_choice("scatter", self.scatter, Scatter)
        if self.teams != "auto":
            self._check_gather(self.teams)

    def check(self, ranks: int) -> None:
        if self.teams != "auto" and ranks % self.teams:
            fitting = [d for d in range(1, ranks + 1) if ranks % d == 0]
            raise ConfigError(
                f"teams is {self.teams}, which does not divide {ranks} ranks: choose "
                f"one of {fitting}, or 'auto'"
            )

    def init(self, layout: Layout) -> CollectiveMemory:
        return SparDLMemory()

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> SparseVector:
        memory = checked(memory, SparDLMemory)
        teams = self.teams_for(x.size, channel.size, channel.codec)
        team = Team.of(channel.rank, channel.size, teams)
        blocks = _blocks(x.size, team.size, self.partition)
        ledgers = Ledger.each(x, channel, blocks)
        budgets = [keep_count(block.length, self.density) for block in blocks]

        plan = schedules.direct if self._direct(team.size) else schedules.halving
        scatter = plan(team.position, team.members)
        between = _Between(
            team,
            ledgers[team.position],
            budgets[team.position],
            phase=len(scatter),
            memory=None if self._recursive(team.count) else memory,
        )
        gather = schedules.bruck(team.position, team.members, phase=_FINAL)

        def spec(number: int, phase: int) -> ListSpec:
            if phase >= len(scatter):
                return between.spec(phase)
            return ledgers[number].spec(budgets[number], phase)

        run = channel.start([*scatter, *between.steps, *gather], spec)
        reduce_scatter(run, ledgers, budgets, scatter)
        mine = between.agree(run)
        if isinstance(mine, SparseVector):
            return mine
        gathered = all_gather(run, mine, team.position, gather)
        return SparseVector.joined([each.vector for each in gathered], blocks)

    def teams_for(self, size: int, ranks: int, codec: Codec | None) -> int:
        """The number of teams, chosen where it is "auto"."""
        self.check(ranks)
        if self.teams != "auto":
            return self.teams
        if self.link is None:
            return 2 if ranks % 2 == 0 else 1
        return _fastest_teams(self, size, ranks, codec)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The cost of the busiest rank; with Bruck's gather, that of the first step.

        In later steps its lists have up to d times as many entries.
        """
        teams = self.teams_for(size, ranks, codec)
        return self.card(size, ranks, teams, codec)

    def card(
        self,
        size: int,
        ranks: int,
        teams: int,
        codec: Codec | None,
        *,
        worst: bool = False,
    ) -> Cost:
        """The cost with `teams` teams; `worst` assumes that all send equal lists."""
        if ranks == 1:
            return Cost()
        blocks = _blocks(size, ranks // teams, self.partition)
        budgets = [keep_count(block.length, self.density) for block in blocks]
        nbytes = lru_cache(lambda length, k: packet_nbytes(codec, length, k))
        packets = [nbytes(b.length, k) for b, k in zip(blocks, budgets, strict=True)]
        if self._recursive(teams):
            between = [(teams - 1).bit_length() * packet for packet in packets]
        else:
            given = [
                k if worst else LengthController.start(k, teams).h for k in budgets
            ]
            between = [
                (teams - 1) * nbytes(b.length, h)
                for b, h in zip(blocks, given, strict=True)
            ]
        count = len(blocks)
        # Prefix sums of two copies: any cyclic run of blocks is a difference.
        before = [0, *accumulate(2 * packets)]
        gathered = [len(step.sends) for step in schedules.bruck(0, range(count))]
        sent = [
            before[count]
            - packets[r]
            + between[r]
            + sum(before[r + carried] - before[r] for carried in gathered)
            for r in range(count)
        ]
        doublings = (count - 1).bit_length()
        scattered = count - 1 if self._direct(count) else doublings
        rounds = scattered + doublings + (teams - 1).bit_length()
        return Cost(rounds, max(sent))

    def _recursive(self, teams: int) -> bool:
        return self.gather != "bruck" and teams & (teams - 1) == 0

    def _direct(self, owners: int) -> bool:
        few = self.scatter == "auto" and owners <= FEW_OWNERS
        return few or self.scatter == "direct"

    def _check_gather(self, teams: int) -> None:
        if self.gather == "recursive" and teams & (teams - 1):
            raise ConfigError(
                f"gather is 'recursive' with {teams} teams: recursive doubling needs a "
                "power of two; choose 'bruck' or 'auto'"
            )


def _names_teams(teams: object) -> bool:
    return is_whole(teams, least=1) or (isinstance(teams, str) and teams == "auto")


@dataclass(frozen=True, slots=True)
class _Between:
    """How the owners of a block, one in each team, agree on its `k` entries.

    With a `memory`, they gather their lists, and the controller in it sets the length
    of these; else they use recursive doubling.
    """

    team: Team
    ledger: Ledger
    k: int
    phase: int
    memory: SparDLMemory | None

    @property
    def steps(self) -> list[Step]:
        """The schedule; empty with one team."""
        me, peers = self.team.number, self.team.owners
        if self.memory is not None:
            return schedules.bruck(me, peers, phase=self.phase)
        return schedules.doubling(me, peers, phase=self.phase, farthest_first=True)

    @property
    def entries(self) -> int:
        """The number of entries in a list that an owner sends."""
        if self.memory is None:
            return self.k
        return self._controller(self.memory).h

    def spec(self, phase: int) -> ListSpec:
        """A list of another owner."""
        return self.ledger.spec(self.entries, phase)

    def agree(self, run: Run) -> SparseVector | Sealed:
        """The owners' common list; sealed if it goes on to the rest of the team."""
        ledger, alone = self.ledger, self.team.size == 1
        if self.team.count == 1:
            if alone:
                return ledger.take(self.k)
            return ledger.select_and_seal(self.k, phase=_FINAL)
        first = ledger.select_and_seal(self.entries, self.phase)
        if self.memory is None:
            agreed = doubling.agree(run, ledger, first, k=self.k, steps=self.steps)
        else:
            lists = all_gather(run, first, self.team.number, self.steps)
            agreed = self._cut([each.vector for each in lists], self.memory)
        if alone:
            return agreed
        return ledger.seal(agreed, holders=self._owners, phase=_FINAL)

    @property
    def _owners(self) -> Holders:
        return Holders(self.team.count, self.team.number)

    def _controller(self, memory: SparDLMemory) -> LengthController:
        return memory.controller_for(self.k, self.team.count, self.team.position)

    def _cut(self, lists: Sequence[SparseVector], memory: SparDLMemory) -> SparseVector:
        """The `k` largest entries of the sum; adjusts the controller."""
        total, team = sum_of(lists), self.team
        memory.controller = self._controller(memory).after(
            total.nnz, self.k, team.count
        )
        memory.teams, memory.position = team.count, team.position
        kept, dropped = total.split(self.k)
        self.ledger.return_to_residual(dropped, self._owners)
        return kept.filled(self.k)


@lru_cache(maxsize=256)
def _fastest_teams(spardl: SparDL, size: int, ranks: int, codec: Codec | None) -> int:
    """What `teams="auto"` stands for on a link."""
    link = spardl.link or Link()
    if codec is None or codec.nbytes(1, 1) is None:
        codec = Split()  # instead of one whose packets have no fixed length
    only_powers = spardl.gather == "recursive"
    seconds = {
        teams: link.seconds(spardl.card(size, ranks, teams, codec, worst=True))
        for teams in range(1, ranks + 1)
        if ranks % teams == 0 and not (only_powers and teams & (teams - 1))
    }
    return min(seconds, key=seconds.__getitem__)


@lru_cache(maxsize=256)
def _blocks(size: int, count: int, partition: Partition) -> tuple[Block, ...]:
    if partition == "contiguous" or count == 1:
        return contiguous_blocks(size, count)
    chunk = CHUNK
    while chunk > 1 and size < FEW * count * chunk:
        chunk //= 2
    return interleaved_blocks(size, count, chunk)
