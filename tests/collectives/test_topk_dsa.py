"""TopkDSA: topk's total through owners of regions, dense where lists are longer."""

import pytest
import torch

from tests.collectives.reductions import reduce
from thinwire.accumulator import Accumulator
from thinwire.catalog import codec
from thinwire.channel import Channel
from thinwire.collectives import AllGather, CollectiveMemory, TopKDSA
from thinwire.cost import Cost
from thinwire.groups import Counted, simulate


def listed(total):
    """A total as a dict without zeros, whether sparse or dense."""
    found = total if isinstance(total, dict) else dict(enumerate(total))
    return {i: value for i, value in found.items() if value}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("density", [0.02, 0.3])
def test_it_delivers_what_topk_does(ranks, density):
    generator = torch.Generator().manual_seed(ranks)
    xs = torch.randint(-99, 99, (ranks, 300), generator=generator).tolist()
    ours, plain = (reduce(kind(density), xs) for kind in (TopKDSA, AllGather))
    assert listed(ours.total) == listed(plain.total)
    assert ours.after == plain.after


def test_the_switch_compares_packets_of_the_codec():
    xs = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)).tolist()
    raw, short = (
        reduce(TopKDSA(0.6), xs, codec=codec(name))
        for name in ("raw", "elias-fano+bfloat16")
    )
    assert isinstance(raw.total, list)
    assert isinstance(short.total, dict)
    few = reduce(TopKDSA(0.2), xs)
    assert isinstance(few.total, dict)


def test_no_more_than_the_whole_vector_is_gathered():
    """With 16 ranks that select all another 1 %, as with 100: the card levels off."""
    raw = codec("raw")
    costs = [TopKDSA(0.01).cost(100_000 * p, p, raw).nbytes / p for p in (10, 60, 100)]
    assert costs[0] < costs[1] <= 4 * 100_000 * 1.02 + 8 * 1000 * 1.02 + 5000
    assert costs[2] == pytest.approx(costs[1], rel=0.02)
    assert TopKDSA().cost(1000, 1, raw) == Cost()


def test_dense_steps_take_a_message_for_every_other_rank():
    size, ranks = 4000, 4

    def body(group):
        counted = Counted(group)
        x = Accumulator.of(torch.ones(size))
        channel = Channel(counted, codec("raw"))
        out = torch.empty(size)
        total = TopKDSA(1.0).all_reduce_(x, channel, CollectiveMemory(), lambda: out)
        assert total is out
        return counted.traffic.cost

    assert simulate(ranks, body) == [TopKDSA(1.0).cost(size, ranks, codec("raw"))] * 4
