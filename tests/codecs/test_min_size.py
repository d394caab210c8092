"""MinSize: the codec of a vector, and whether packets have fixed lengths."""

import pytest
import torch

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import BFloat16, Float32, Int32, MinSize, Rice, Split
from thinwire.collectives import AllGather, SparDL
from thinwire.errors import ConfigError
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

HALF = Split(Int32(), BFloat16())
RICE = Split(Rice(), Float32())


def vector(size):
    return SparseVector.of({0: 1.0, 3: -2.0}, size)


def test_vectors_below_the_size_are_raw():
    codec = MinSize(10, HALF)
    for size, inner in ((9, Split()), (10, HALF)):
        packet = codec.encode(vector(size))
        assert torch.equal(packet.body, inner.encode(vector(size)).body)
        assert codec.decode(packet, size, 2).to_dict() == vector(size).to_dict()
        assert codec.nbytes(size, 2) == inner.nbytes(size, 2) == packet.body.numel()


@pytest.mark.parametrize("codec", [MinSize(10, RICE), MinSize(10, HALF, RICE)], ids=str)
def test_lengths_travel_with_all_packets_or_with_none(codec):
    for size in (0, 9, 10, 1000):
        assert codec.nbytes(size, 0) is None
        with pytest.raises(ConfigError, match="depend on the data"):
            AllGather(0.5).cost(size, 4, codec)


def test_blocks_on_both_sides_of_the_size_cross():
    # Of 4002 elements, two blocks have 1001 and two have 1000.
    collective = SparDL(0.05, partition="contiguous")
    codec = MinSize(1001, RICE)

    def body(group):
        x = torch.randn(4002, generator=torch.Generator().manual_seed(group.rank))
        state = collective.init(Layout.flat(4002))
        channel = Channel(group, codec)
        total = collective.all_reduce_(Accumulator.of(x), channel, state, lambda: x)
        return total.to_dict()

    totals = simulate(4, body)
    assert len(totals[0]) > 100
    assert all(total == totals[0] for total in totals)


def test_a_negative_size_is_refused():
    with pytest.raises(ConfigError, match="size is -1"):
        MinSize(-1, RICE)
