"""SparDL: worked examples, its schedules, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from tests.collectives.reductions import reduce
from tests.laws.cases import CODECS
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Split
from thinwire.collectives import GTopK, SparDL
from thinwire.collectives.spardl import _blocks
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.schedules import halving

A = [
    [-13, 13, -11, -3, 11, -12, -2, 4, 10, -1, -12, -15],
    [10, 15, -9, 14, 4, -7, -5, 10, -11, -1, -2, 5],
    [14, 5, 12, 7, -5, -2, -10, -11, -4, 9, 1, -2],
    [8, -2, -5, 8, -2, 6, -14, 15, -3, -3, 12, 4],
    [-2, -13, 3, -12, 2, -8, 8, -7, 15, -2, -5, -8],
]


def spardl(ranks, size, density=0.5, **options):
    given = {"scatter": "halving", **options}
    collective = SparDL(density, partition="contiguous", **given)
    return reduce(collective, [row[:size] for row in A[:ranks]])


def dense(total, size):
    return [total.get(i, 0) for i in range(size)]


@pytest.mark.parametrize(
    ("ranks", "total", "after"),
    [
        (2, [0, 28, -20, 0], [[-13, 0, 0, -3], [10, 0, 0, 14]]),
        (
            3,
            [0, 28, 0, 14, 0, -21],
            [[1, 0, 0, -3, 11, 0], [10, 0, -8, 0, 4, 0], [0, 5, 0, 7, -5, 0]],
        ),
        (
            4,
            [0, 26, 0, 19, 0, -14, 0, 25],
            [
                [1, 0, 1, 0, 11, 0, -2, 0],
                [10, 0, -9, 0, 0, -1, -5, 0],
                [0, 5, 0, 7, -1, 0, 0, -7],
                [8, 0, -5, 0, -2, 0, -24, 0],
            ],
        ),
        (
            5,
            [0, 15, -8, 0, 0, -23, 0, 25, 11, 0],
            [
                [-5, 0, 0, 5, 11, 0, -2, 0, 0, -1],
                [10, 0, 0, 2, 4, 0, -5, 0, 0, -1],
                [0, 5, 0, 7, -5, 0, 0, -7, -4, 0],
                [0, -2, -5, 0, -2, 0, -16, 0, 0, -3],
                [12, 0, 3, 0, 2, 0, 0, -7, 0, 7],
            ],
        ),
    ],
)
def test_one_team(ranks, total, after):
    result = spardl(ranks, 2 * ranks)
    assert dense(result.total, 2 * ranks) == total
    assert result.after == after


def test_blocks_of_different_lengths():
    result = spardl(5, 12, density=0.4)
    assert dense(result.total, 12) == [0, 15, 0, 0, 0, -19, 0, 18, 0, 6, 0, -25]
    assert result.after == [
        [-5, 0, -11, 5, 11, 0, -2, 0, 0, -1, -12, 0],
        [10, 0, -9, 9, 4, 0, 3, 0, 0, -1, -2, 0],
        [0, 5, 12, 0, -5, -2, -10, 0, 6, 0, 1, 0],
        [0, -2, -5, 0, -2, 6, -14, 0, 1, 0, 0, 9],
        [12, 0, 3, 0, 2, -8, 0, -7, 0, -2, 7, 0],
    ]


def test_two_teams_agree_by_doubling():
    result = spardl(4, 8, teams=2)
    assert dense(result.total, 8) == [0, 28, 0, 15, 15, 0, -24, 0]
    assert result.after == [
        [4.5, 0, -11, 11, 0, 0, -2, 4],
        [10, 0, -9, 0, 0, -6.5, -5, 10],
        [4.5, 5, 12, 0, -5, -2, 0, 0],
        [0, -2, -5, 0, -2, -6.5, 0, 4],
    ]


def test_two_teams_agree_by_gathering_short_lists():
    # Bruck's gather starts with h = kb / d = 1 entry per team.
    result = spardl(4, 8, teams=2, gather="bruck")
    assert dense(result.total, 8) == [22, 28, 0, 0, 0, -19, -24, 0]
    assert result.after == [
        [-13, 0, -11, 11, 0, 0, -2, 4],
        [10, 0, -9, 0, 15, 0, -5, 10],
        [0, 5, 12, 15, -5, -2, 0, 0],
        [0, -2, -5, 0, -2, 6, 0, 4],
    ]


def test_teams_of_one():
    result = spardl(4, 8, density=0.25, teams=4)
    assert dense(result.total, 8) == [0, 28, 0, 0, 0, 0, 0, 15]
    assert result.after == [
        [0.5, 0, -8, -3, 11, -12, -2, 4],
        [10, 0, -6, 7, 4, -7, -12, 10],
        [0.5, 5, 3, 7, -5, -2, -10, -11],
        [8, -2, -2, 15, -2, 6, -7, 0],
    ]


def test_teams_of_one_are_a_butterfly_of_reversed_ranks():
    generator = torch.Generator().manual_seed(3)
    xs = torch.randint(-99, 99, (8, 200), generator=generator).tolist()
    reversed_ranks = [xs[int(f"{r:03b}"[::-1], 2)] for r in range(8)]
    ours = reduce(SparDL(0.1, teams=8), xs)
    assert ours.total == reduce(GTopK(0.1), reversed_ranks).total


@pytest.mark.parametrize("partition", ["interleaved", "contiguous"])
@pytest.mark.parametrize(("ranks", "teams"), [(1, 1), (3, 1), (4, 2), (3, 3), (4, 4)])
def test_everything_kept_is_the_dense_sum(partition, ranks, teams):
    xs = [row * 3 for row in A[:ranks]]
    result = reduce(SparDL(1.0, teams=teams, partition=partition), xs)
    if teams == 3:  # lists between teams start short, so that any union fits
        left = torch.tensor(result.after).sum(0)
        delivered = torch.tensor([result.total[i] for i in range(36)])
        assert torch.equal(delivered + left, torch.tensor(xs).sum(0).float())
        return
    assert list(result.total.values()) == torch.tensor(xs).sum(0).tolist()
    assert result.after == [[0] * 36] * ranks


def test_one_rank_keeps_its_largest():
    result = reduce(SparDL(0.25), [A[0]])
    assert result.total == {0: -13, 1: 13, 11: -15}


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        (1, []),
        (2, [(1, [1])]),
        (3, [(2, [2]), (1, [1])]),
        (5, [(4, [4]), (2, [2, 3]), (1, [1])]),
        (6, [(4, [4, 5]), (2, [2, 3]), (1, [1])]),
        (14, [(8, [8, 9, 10, 11, 12, 13]), (4, [4, 5, 6, 7]), (2, [2, 3]), (1, [1])]),
    ],
)
def test_blocks_in_each_message(size, steps):
    assert [(step.dst, step.sends) for step in halving(0, range(size))] == steps


@pytest.mark.parametrize("size", [0, 1, 5, 16, 100, 1000, 5003, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_blocks_are_fair(size, count):
    contiguous = [b.length for b in _blocks(size, count, "contiguous")]
    assert sum(contiguous) == size
    assert max(contiguous) - min(contiguous) <= 1
    blocks = _blocks(size, count, "interleaved")
    lengths = [b.length for b in blocks]
    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= blocks[0].chunk
    if size >= 16 * count > 16:
        assert size >= 16 * count * blocks[0].chunk


@pytest.mark.parametrize(
    ("ranks", "teams", "gather", "rounds", "lists"),
    [
        (8, 1, "auto", 6, 14),
        (8, 2, "auto", 5, 7),
        (8, 4, "auto", 4, 4),
        (8, 8, "auto", 3, 3),
        (14, 1, "auto", 8, 26),
        (14, 2, "auto", 7, 13),
        (6, 3, "bruck", 4, 2),
        (1, 1, "auto", 0, 0),
    ],
)
def test_the_card_counts_packets(ranks, teams, gather, rounds, lists):
    # Blocks of 1000, budgets of 100; Bruck's lists across teams are shorter.
    size = 1000 * ranks // teams
    packet = Split().nbytes(1000, 100)
    short = (teams - 1) * Split().nbytes(1000, 100 // teams) if gather == "bruck" else 0
    collective = SparDL(0.1, teams=teams, gather=gather, scatter="halving")
    collective = replace(collective, partition="contiguous")
    cost = collective.cost(size, ranks, Split())
    assert cost == Cost(rounds, lists * packet + short)


def test_direct_scatter_cuts_nothing_before_the_owner_adds():
    # Blocks of 4, budgets of 2. Every rank sends the top 2 of the others' blocks; the
    # owner adds them to its whole block and takes the top 2 of that.
    size, ranks = 12, 3
    expected = []
    for owner in range(ranks):
        block = slice(4 * owner, 4 * owner + 4)
        held = A[owner][block].copy()
        for rank in set(range(ranks)) - {owner}:
            row = A[rank][block]
            for i in sorted(range(4), key=lambda i: -abs(row[i]))[:2]:
                held[i] += row[i]
        most = sorted(range(4), key=lambda i: -abs(held[i]))[:2]
        expected += [held[i] if i in most else 0 for i in range(4)]
    result = spardl(ranks, size, scatter="direct")
    assert dense(result.total, size) == expected


@pytest.mark.parametrize(
    ("ranks", "rounds", "halved"),
    [(1, 0, 0), (2, 2, 2), (5, 7, 6), (8, 10, 6), (9, 12, 8)],
)
def test_direct_scatter_takes_a_message_for_each_other_owner(ranks, rounds, halved):
    costs = {
        scatter: SparDL(0.1, scatter=scatter).cost(10_000 * ranks, ranks, Split())
        for scatter in ("auto", "halving", "direct")
    }
    assert costs["direct"] == Cost(rounds, costs["halving"].nbytes)
    assert costs["halving"].rounds == halved
    assert costs["auto"] == costs["direct" if ranks <= 8 else "halving"]


def test_automatic_teams():
    auto = SparDL(teams="auto")
    assert [auto.teams_for(10**6, ranks, None) for ranks in (1, 2, 5, 14)] == [
        1,
        2,
        1,
        2,
    ]
    slow = SparDL(teams="auto", link=Link(latency=0.1, bandwidth=1e9))
    assert slow.teams_for(10**6, 16, Split()) == 16
    assert slow.teams_for(10**6, 16, CODECS["unsized"]) == 16
    narrow = SparDL(teams="auto", link=Link(latency=1e-9, bandwidth=1e6))
    assert narrow.teams_for(10**6, 14, Split()) in (1, 2)
    odd = SparDL(teams="auto", gather="recursive", link=Link(latency=0.1))
    assert odd.teams_for(10**6, 12, Split()) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"teams": 0}, "teams is 0"),
        ({"teams": "two"}, "teams is 'two'"),
        ({"teams": 1.5}, r"teams is 1\.5"),
        ({"gather": "ring"}, "gather is 'ring': choose 'auto' or 'recursive'"),
        ({"partition": "random"}, "partition is 'random': choose 'interleaved'"),
        ({"scatter": "ring"}, "scatter is 'ring': choose 'auto' or 'halving'"),
        ({"teams": 6, "gather": "recursive"}, "power of two"),
        ({"density": 0}, "density is 0"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        SparDL(**options)


def test_teams_divide_the_ranks():
    with pytest.raises(ConfigError, match=r"3, which does not divide 4 .*\[1, 2, 4\]"):
        SparDL(teams=3).check(4)
    with pytest.raises(ConfigError, match="does not divide"):
        SparDL(teams=3).cost(100, 4, Split())


def steps_of(collectives, ranks, size):
    """Bytes sent by each rank in each of some steps with one state."""

    def body(group):
        state = collectives[0].init(Layout.flat(size))
        generator = torch.Generator().manual_seed(group.rank)
        # Teams agree at the front of the vector and nowhere else.
        common = torch.arange(size) < size // 3
        x, sent = Accumulator(size), []
        for step, collective in enumerate(collectives):
            own = torch.randint(-99, 99, (size,), generator=generator).float()
            same = torch.full((size,), 50.0 + step)
            x.accumulate_(torch.where(common, same, own))
            counted = Counted(group)
            channel = Channel(counted, Split(), step=step)
            collective.all_reduce_(x, channel, state, lambda: None)
            sent.append(counted.traffic.sent)
        return sent

    return simulate(ranks, body)


def test_the_controller_starts_anew_with_other_teams():
    # Owners of a block have been controllers of other blocks: their lists would differ.
    few, many = (SparDL(0.1, teams=d, partition="contiguous") for d in (3, 6))
    steps_of([few] * 12 + [many] * 3 + [few] * 3, ranks=6, size=1200)


def test_lists_between_teams_stay_below_the_worst_card():
    collective = SparDL(0.1, teams=7, partition="contiguous")
    first = collective.cost(2800, 14, Split()).nbytes
    worst = collective.card(2800, 14, 7, Split(), worst=True).nbytes
    sent = steps_of([collective] * 20, ranks=14, size=2800)
    assert max(each[0] for each in sent) == first
    assert first < max(max(each) for each in sent) <= worst
