"""DeepReduce's combinations: the published volumes, and what they decode to."""

import pytest
import torch

from tests.codecs.deepreduce_inputs import largest, relative_error, scattered
from thinwire.codecs import (
    QSGD,
    Bitmap,
    Bloom,
    FitDExp,
    FitPoly,
    Float32,
    Split,
)
from thinwire.codecs.order import map_nbytes
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

SIZE, NNZ = 36_864, 368


def top_one_percent(seed=0):
    """A vector, and its largest entries as a list."""
    generator = torch.Generator().manual_seed(seed)
    values = largest("laplace", NNZ, seed)
    values = values[torch.randperm(NNZ, generator=generator)]
    indices = scattered(SIZE, NNZ, seed)
    dense = torch.zeros(SIZE)
    dense[indices.long()] = values
    return dense, SparseVector(indices, values, SIZE)


@pytest.mark.parametrize("policy", ["p0", "p1", "p2", "leftmost"])
@pytest.mark.parametrize("value", [FitPoly(), FitDExp(), QSGD()])
def test_a_filter_and_a_lossy_value_codec_agree(policy, value):
    dense, vector = top_one_percent(seed=3)
    codec = Split(Bloom(policy), value)
    packet = codec.encode(vector, source=lambda i: dense[i.long()], key=9)
    read = codec.decode(Packet.parse(packet.body), SIZE, NNZ, key=9)
    told = Bloom(policy, key=9).decode(packet.sections[0], SIZE, NNZ)
    assert torch.equal(read.indices, told)
    assert relative_error(read.values, dense[told.long()]) < 0.15


def test_a_line_of_four_values_needs_two_coefficients():
    dense = [0, 4.0, 4.6, 0, 5.2, 0, 0, 5.8]
    vector = SparseVector.of({i: v for i, v in enumerate(dense) if v}, 8)
    codec = Split(Bitmap(), FitPoly(degree=1, pieces=1))
    packet = codec.encode(vector)
    index, value = packet.sections
    assert index[:1].tolist() == [0b10010110]
    # A map of 4 times 2 bits; then one piece, its length, 2 coefficients, padding.
    assert value[8:17].tolist() == [1, 0, 0, 0, 4, 0, 0, 0, 2]
    read = codec.decode(packet, 8, 4)
    assert read.indices.tolist() == vector.indices.tolist()
    assert relative_error(read.values, vector.values) < 1e-7


def test_the_order_is_sent_only_where_values_are_sorted():
    sizes = {
        value: Split(Bloom(), value).encode(top_one_percent()[1]).body.numel()
        for value in (Float32(), FitDExp())
    }
    curves = 72
    assert sizes[FitDExp()] - sizes[Float32()] == map_nbytes(NNZ) + curves - 4 * NNZ
