"""gTop-k: a worked example, and the differences between the variants."""

import pytest
import torch

from tests.collectives.reductions import reduce
from tests.laws.cases import CODECS
from thinwire.codecs import Split
from thinwire.collectives import GTopK
from thinwire.cost import Cost
from thinwire.errors import ConfigError

A = [
    [-1, -6, 7, -4, 9, -2],
    [-3, 6, -5, -12, 2, 10],
    [-2, -5, 6, 8, -9, -12],
    [8, -3, 6, 1, 4, -2],
    [2, -3, -1, -6, -11, -7],
]
TWO_OF_SIX = 1 / 3


def gtopk(ranks, variant, **more):
    return reduce(GTopK(TWO_OF_SIX, variant), A[:ranks], **more)


@pytest.mark.parametrize(
    ("ranks", "total", "after"),
    [
        (2, {3: -12, 5: 10}, [[-1, -6, 7, -4, 9, -2], [-3, 6, -5, 0, 2, 0]]),
        (
            3,
            {3: -12, 4: -9},
            [[-1, -6, 7, -4, 9, -4], [-3, 6, -5, 0, 2, 0], [-2, -5, 6, 8, 0, 0]],
        ),
        (
            4,
            {3: -12, 4: -9},
            [
                [-1, -6, 7, -4, 9, -4],
                [-3, 6, -5, 0, 2, 0],
                [6, -5, 12, 8, 0, 0],
                [0, -3, 0, 1, 4, -2],
            ],
        ),
        (
            5,
            {3: -12, 4: -20},
            [
                [-1, -6, 7, -4, 9, -11],
                [-3, 6, -5, 0, 2, 0],
                [6, -5, 12, 8, 0, 0],
                [0, -3, 0, 1, 4, -2],
                [2, -3, -1, -6, 0, 0],
            ],
        ),
    ],
)
def test_in_the_tree_the_rank_that_merges_keeps_what_it_drops(ranks, total, after):
    result = gtopk(ranks, "tree")
    assert result.total == total
    assert result.after == after


@pytest.mark.parametrize(
    ("ranks", "total", "after"),
    [
        (2, {3: -12, 5: 10}, [[-1, -6, 3.5, -4, 4.5, -2], [-3, 6, -1.5, 0, 6.5, 0]]),
        (
            3,
            {2: 7, 3: -12},
            [[-1, -6, 0, -4, 0, -3], [-3, 6, -5, 0, 2, -1], [-2, -5, 6, 8, 0, 0]],
        ),
        (
            4,
            {3: -12, 4: -9},
            [
                [-1, -6, 3.5, -4, 4.5, -2.5],
                [-3, 6, -1.5, 0, 6.5, -0.5],
                [2, -5, 9, 8, 0, -0.5],
                [4, -3, 3, 1, 4, -2.5],
            ],
        ),
        (
            5,
            {3: -12, 5: -12},
            [
                [-1, -6, 1.75, -4, -4.25, -0.5],
                [-3, 6, -3.25, 0, -0.25, 1.5],
                [2, -5, 10.75, 8, -2.25, 0],
                [4, -3, 4.75, 1, 1.75, -2],
                [2, -3, -1, -6, 0, 0],
            ],
        ),
    ],
)
def test_butterfly_holders_share_what_they_drop(ranks, total, after):
    result = gtopk(ranks, "butterfly")
    assert result.total == total
    assert result.after == after


@pytest.mark.parametrize(
    ("ranks", "total"),
    [(2, {3: -12, 5: 10}), (3, {2: 7, 3: -12}), (4, {2: 13, 3: -12})],
)
def test_naive_cuts_the_sum_of_everything(ranks, total):
    assert gtopk(ranks, "naive").total == total


@pytest.mark.parametrize("variant", ["butterfly", "tree"])
def test_merging_is_not_the_top_of_the_sum(variant):
    lists = [[3, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2.5]]
    assert reduce(GTopK(0.34, variant), lists).total == {0: 3}
    assert reduce(GTopK(0.34, "naive"), lists).total == {1: 4}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_tree_and_butterfly_agree_for_powers_of_two(ranks):
    generator = torch.Generator().manual_seed(ranks)
    xs = torch.randint(-99, 99, (ranks, 300), generator=generator).tolist()
    tree, butterfly = (reduce(GTopK(0.05, v), xs) for v in ("tree", "butterfly"))
    assert tree.total == butterfly.total


@pytest.mark.parametrize("variant", ["butterfly", "tree", "naive"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_everything_kept_is_the_dense_sum(variant, ranks):
    result = reduce(GTopK(1.0, variant), A[:ranks])
    sums = torch.tensor(A[:ranks]).sum(0).tolist()
    assert list(result.total.values()) == sums
    assert result.after == [[0] * 6] * ranks


@pytest.mark.parametrize("variant", ["butterfly", "tree", "naive"])
def test_lists_apart_give_the_largest_of_all(variant):
    xs = [[(5 * i + r + 1) * (i % 5 == r) for i in range(25)] for r in range(5)]
    result = reduce(GTopK(0.2, variant), xs)
    assert sorted(result.total) == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("variant", ["butterfly", "tree"])
def test_lost_under_the_published_rule_kept_under_ours(variant):
    # Rank 0's 9 at index 4 is dropped in its pair, and index 4 is delivered all the
    # same, by others: who restores by final index clears it.
    xs = torch.tensor(A[:4], dtype=torch.float32)
    result = gtopk(4, variant)
    assert lost_by_final_index(xs, result.total).tolist() == [0, 0, 0, 0, 9, 0]
    delivered = torch.zeros(6)
    delivered[list(result.total)] = torch.tensor(list(result.total.values()))
    assert torch.equal(delivered + torch.tensor(result.after).sum(0), xs.sum(0))


def lost_by_final_index(xs, total):
    """What the released code's rule loses: restore what is not in the final list."""
    delivered = torch.zeros(xs.shape[1])
    final = list(total)
    delivered[final] = torch.tensor(list(total.values()), dtype=torch.float32)
    residuals = xs.clone()
    for residual in residuals:
        k = len(final)
        chosen = residual.abs().sort(descending=True, stable=True).indices[:k].tolist()
        residual[[i for i in chosen if i in total]] = 0
    return xs.sum(0) - delivered - residuals.sum(0)


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_how_much_the_published_rule_loses(ranks):
    # The share of the magnitude that is lost after one step.
    generator = torch.Generator().manual_seed(ranks)
    common = torch.randn(2000, generator=generator) ** 3
    own = torch.randn(ranks, 2000, generator=generator) ** 3
    xs = (common + own).mul(64).round()
    total = reduce(GTopK(0.05, "tree"), xs.tolist()).total
    lost = lost_by_final_index(xs, total).abs().sum()
    chosen = xs.abs().sort(dim=1, descending=True).values[:, :100].sum()
    assert 0.005 < lost / chosen < 0.2


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_what_a_codec_rounds_off_stays(ranks):
    # bfloat16 has eight bits: 257 is not among its numbers.
    xs = [[257.0 + 2 * r, 1, 0, 0] for r in range(ranks)]
    for variant in ("butterfly", "tree", "naive"):
        result = reduce(GTopK(0.25, variant), xs, codec=CODECS["int32+bfloat16"])
        left = sum(after[0] for after in result.after)
        assert result.total[0] + left == sum(x[0] for x in xs)


@pytest.mark.parametrize(
    ("variant", "ranks", "cost"),
    [
        ("butterfly", 1, Cost()),
        ("butterfly", 2, Cost(1, 1)),
        ("butterfly", 3, Cost(3, 2)),
        ("butterfly", 5, Cost(4, 3)),
        ("butterfly", 8, Cost(3, 3)),
        ("tree", 2, Cost(2, 1)),
        ("tree", 3, Cost(4, 2)),
        ("tree", 5, Cost(6, 3)),
        ("tree", 8, Cost(6, 3)),
        ("naive", 5, Cost(4, 4)),
    ],
)
def test_the_card_counts_packets(variant, ranks, cost):
    packet = Split().nbytes(1000, 10)
    expected = Cost(cost.rounds, cost.nbytes * packet)
    assert GTopK(0.01, variant).cost(1000, ranks, Split()) == expected


def test_a_variant_is_one_of_three():
    with pytest.raises(ConfigError, match="variant is 'ring': choose 'butterfly'"):
        GTopK(variant="ring")
