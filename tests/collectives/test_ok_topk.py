"""Ok-Topk: even regions, common boundaries, about k survivors, nothing lost."""

import pytest
import torch

from tests.collectives.reductions import reduce
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Split
from thinwire.collectives import AllGather, OkTopK, TopKDSA, ok_topk
from thinwire.collectives.ok_topk import DRIFT, OkTopKMemory
from thinwire.collectives.regions import Regions
from thinwire.errors import ConfigError, WireError
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

A = [
    [-13, 13, -11, -3, 11, -12, -2, 4, 10, -1, -12, -15],
    [10, 15, -9, 14, 4, -7, -5, 10, -11, -1, -2, 5],
    [14, 5, 12, 7, -5, -2, -10, -11, -4, 9, 1, -2],
]


def front_heavy(rank, step, size):
    """Large values in the first tenth, small ones elsewhere."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    values = torch.randn(size, generator=generator)
    values[: size // 10] *= 20
    return values


def train(ranks, size, collective, steps, data=front_heavy):
    """Of every rank, of every step: the entries listed, and the memory."""

    def body(group):
        x, memory, seen = Accumulator(size), collective.init(Layout.flat(size)), []
        for step in range(steps):
            x.accumulate_(data(group.rank, step, size))
            channel = Channel(group, Split(), step=step)
            total = collective.all_reduce_(x, channel, memory, lambda: None)
            seen.append((total.nnz, memory.to_dict()))
        return seen

    return simulate(ranks, body)


def test_a_step_by_hand():
    # k = 3. The ranks take {0: -13, 1: 13, 11: -15} and {1: 15, 3: 14, 8: -11}, and
    # would cut before 1 and before 3: the boundary is 2. The sums of the owners are
    # {0: -13, 1: 28} and {3: 14, 8: -11, 11: -15}, so 14 is the threshold.
    result = reduce(OkTopK(0.25), A[:2])
    assert result.total == {1: 28, 3: 14, 11: -15}
    assert result.after == [
        [-13, 0, -11, -3, 11, -12, -2, 4, 10, -1, -12, 0],
        [10, 0, -9, 0, 4, -7, -5, 10, -11, -1, -2, 5],
    ]


def test_what_an_owner_cuts_stays_with_it_as_the_sum():
    taken = AllGather(0.25)
    result, everything = reduce(OkTopK(0.25), A), reduce(taken, A)
    cut = set(everything.total) - set(result.total)
    assert cut
    for i in cut:
        own = [row[i] - everything.after[r][i] for r, row in enumerate(A)]
        kept = [
            after[i] - everything.after[r][i] for r, after in enumerate(result.after)
        ]
        assert sorted(kept) == sorted([0, 0, sum(own)])


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 14])
def test_regions_have_even_shares_of_what_ranks_select(ranks):
    size = 20_000
    (first, *others) = train(ranks, size, OkTopK(0.01), 1)
    assert others == [first] * (ranks - 1)
    ((_, memory),) = first
    bounds = [memory[f"bound {i}"] for i in range(ranks + 1)]
    assert (bounds[0], bounds[-1]) == (0, size)
    assert bounds == sorted(bounds)
    selected = torch.cat(
        [front_heavy(r, 0, size).abs().topk(200).indices for r in range(ranks)]
    )
    inside = torch.histogram(selected.double(), torch.tensor(bounds).double()).hist
    assert inside.max() < 1.3 * inside.mean()
    # Regions of equal length would leave nearly all to the first owners.
    equal = torch.histogram(selected.double(), ranks, range=(0, size)).hist
    assert equal.max() > 1.8 * equal.mean()


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_about_k_entries_survive_in_every_step(ranks):
    # Residuals grow from step to step: the first threshold would let through far more.
    (first, *others) = train(ranks, 20_000, OkTopK(0.01), 12)
    assert others == [first] * (ranks - 1)
    listed = [nnz for nnz, _ in first]
    assert all(200 / DRIFT <= nnz <= 200 * DRIFT for nnz in listed), listed
    assert listed[0] == 200


def test_an_old_threshold_would_let_through_more(monkeypatch):
    monkeypatch.setattr(ok_topk, "DRIFT", 1e9)
    listed = [nnz for nnz, _ in train(5, 20_000, OkTopK(0.01), 12)[0]]
    assert max(listed) > 300


def test_agreements_last_as_many_steps_as_they_should(monkeypatch):
    monkeypatch.setattr(ok_topk, "DRIFT", 1e9)
    seen = train(3, 2000, OkTopK(0.05, threshold_every=3, regions_every=2), 7)[0]
    thresholds = [memory["threshold"] for _, memory in seen]
    assert thresholds[0] == thresholds[1] == thresholds[2]
    assert thresholds[3] == thresholds[4] == thresholds[5]
    assert len(set(thresholds)) == 3
    bounds = [memory["bound 1"] for _, memory in seen]
    assert bounds[0] == bounds[1]
    assert bounds[2] == bounds[3]
    assert len(set(bounds)) == 4


def test_a_sampled_threshold_is_near_the_exact_one(monkeypatch):
    monkeypatch.setattr(ok_topk, "SAMPLES", 4000)
    exact = train(4, 20_000, OkTopK(0.05), 1)[0][0][0]
    monkeypatch.setattr(ok_topk, "SAMPLES", 32)
    sampled = train(4, 20_000, OkTopK(0.05), 1)[0][0][0]
    assert exact == 1000
    # No more than one entry in 32 of what owners hold, which is at most 4000.
    assert 1000 < sampled <= 1000 + 4000 / 32 + 4


def test_a_memory_returns_from_its_integers():
    collective = OkTopK(0.05)
    saved = train(3, 2000, collective, 2)[0][-1][1]
    memory = collective.init(Layout.flat(2000))
    assert memory.to_dict() == {}
    memory.load_dict(saved)
    assert memory.to_dict() == memory.common() == saved
    assert len(memory.bounds) == 4


def test_boundaries_are_agreed_anew_by_another_number_of_ranks():
    saved = train(3, 2000, OkTopK(0.05), 2)[0][-1][1]

    def body(group):
        x, memory = Accumulator(2000), OkTopKMemory()
        memory.load_dict(saved)
        x.accumulate_(front_heavy(group.rank, 0, 2000))
        OkTopK(0.05).all_reduce_(x, Channel(group, Split()), memory, lambda: None)
        return memory.bounds

    bounds, *others = simulate(5, body)
    assert len(bounds) == 6
    assert others == [bounds] * 4


@pytest.mark.parametrize(
    "counts", [[9, 0, 0], [0, 8, 1], [0, 0, 7], [1, 0, 30], [0] * 3]
)
def test_entries_move_until_all_ranks_have_as_many(counts):
    """The list that all ranks end with is that of a gather without moving."""
    size, bounds = 120, (0, 40, 80, 120)

    def body(group):
        start = bounds[group.rank]
        indices = torch.arange(start, start + counts[group.rank], dtype=torch.int32)
        mine = SparseVector(indices, indices + 1.0, size)
        x = Accumulator(size)
        regions = Regions(ok_topk.Ledger.whole(x, Channel(group, Split())), bounds)
        return [
            g(mine, counts).to_dict() for g in (regions.gather, regions.gather_evenly)
        ]

    expected = {
        start + i: start + i + 1.0
        for start, count in zip(bounds, counts, strict=False)
        for i in range(count)
    }
    assert simulate(3, body) == [[expected, expected]] * 3


def test_entries_move_where_one_owner_has_nearly_all(monkeypatch):
    # All that is large moves to one region after boundaries were agreed.
    moved = []
    original = Regions.gather_evenly

    def watched(self, mine, counts):
        moved.append(list(counts))
        return original(self, mine, counts)

    monkeypatch.setattr(Regions, "gather_evenly", watched)

    def data(rank, step, size):
        values = torch.zeros(size)
        start = 0 if step == 0 else size - size // 40
        values[start : start + (size if step == 0 else 50)] = 1.0 + step * 99
        return values + 0.01 * front_heavy(rank, step, size).abs()

    (first, *others) = train(8, 2000, OkTopK(0.02), 3, data)
    assert others == [first] * 7
    assert moved
    assert all(max(counts) * 8 > ok_topk.UNEVEN * sum(counts) for counts in moved)


def test_it_delivers_what_topk_dsa_does_where_all_select_the_same():
    rows = [A[0] + [0] * 500] * 3
    assert reduce(OkTopK(0.01), rows) == reduce(TopKDSA(0.01), rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold_every": 0}, "threshold_every is 0: give a number of steps"),
        ({"regions_every": 1.5}, r"regions_every is 1\.5"),
        ({"density": 0}, "density is 0"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        OkTopK(**options)


def test_a_peer_that_tells_nonsense_is_named():
    class Lying:
        size, rank = 2, 0

        def all_gather(self, body, *, nbytes):
            return [body, torch.tensor([-1]).view(torch.uint8)]

        def rank_in_whole(self, rank):
            return rank

    with pytest.raises(WireError, match="from rank 1: a negative number"):
        ok_topk.tell(Channel(Lying()), [3], torch.device("cpu"))
