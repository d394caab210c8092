"""Timed: the codec it contains, and the seconds it took."""

import torch

from tests.laws.cases import CODECS
from thinwire import kernels
from thinwire.codecs import Bitmap, Split, Timed
from thinwire.sparse import SparseVector


def test_a_timed_codec_is_the_codec_and_a_stopwatch():
    vector = SparseVector.of({1: 1.0, 4: 2.0}, size=6)
    for codec in CODECS.values():
        timed = Timed(codec)
        packet = timed.encode(vector, key=3)
        assert torch.equal(packet.body, codec.encode(vector, key=3).body)
        read = codec.decode(packet, 6, 2, key=3)
        assert timed.decode(packet, 6, 2, key=3).to_dict() == read.to_dict()
        assert timed.nbytes(6, 2) == codec.nbytes(6, 2)
        assert timed.stopwatch.keys() == {"encode", "decode"}
        assert min(timed.stopwatch.values()) > 0


def test_seconds_add_up_and_are_no_part_of_the_configuration():
    timed = Timed(Split())
    seconds = []
    for _ in range(3):
        timed.encode(SparseVector.of({}, size=0))
        seconds.append(timed.stopwatch["encode"])
    assert seconds == sorted(set(seconds))
    assert timed == Timed(Split())


def test_kernels_inside_a_codec_are_timed_once():
    stopwatch = {}
    timed = Timed(Split(Bitmap()), stopwatch)
    with kernels.timed_primitives(stopwatch):
        packet = timed.encode(SparseVector.of({1: 1.0}, size=9))
        timed.decode(packet, 9)
        kernels.encode_bitmap(torch.tensor([3]), 9)
    assert stopwatch.keys() == {"encode", "decode", "encode_bitmap"}
