"""Tree sums: the same bits on every rank, in a stated order of additions."""

import pytest
import torch

from thinwire.channel import Channel
from thinwire.collectives.tree import tree_sum_, tree_sum_cost
from thinwire.cost import Cost
from thinwire.groups import Counted, simulate

RANKS = (1, 2, 3, 4, 5, 7, 8)


def summed(parts):
    def body(group):
        buffer = parts[group.rank].clone()
        tree_sum_(buffer, Channel(group))
        return buffer

    return simulate(len(parts), body)


def by_hand(parts):
    """Rank r takes in r + s for s = 1, 2, 4, ..., as long as it is a multiple of 2s."""
    parts, distance = [part.clone() for part in parts], 1
    while distance < len(parts):
        for rank in range(0, len(parts) - distance, 2 * distance):
            parts[rank] += parts[rank + distance]
        distance *= 2
    return parts[0]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5)])
def test_everyone_has_the_sum(ranks, shape):
    parts = [torch.randn(shape) for _ in range(ranks)]
    expected = by_hand(parts)
    for buffer in summed(parts):
        assert buffer.shape == shape
        assert torch.equal(buffer.view(-1), expected.view(-1))


@pytest.mark.parametrize("ranks", RANKS)
def test_its_cost_is_the_root_s(ranks):
    def body(group):
        counted = Counted(group)
        tree_sum_(torch.ones(100), Channel(counted))
        return counted.traffic.cost

    costs = simulate(ranks, body)
    assert costs[0] == tree_sum_cost(400, ranks)
    assert max(cost.nbytes for cost in costs) == costs[0].nbytes
    assert max(cost.rounds for cost in costs) == costs[0].rounds


def test_a_tree_of_one_says_nothing():
    assert tree_sum_cost(400, 1) == Cost()
