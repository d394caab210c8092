"""Every exact index codec: round trips, and invalid sections are refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.index_lists import both, edge, lists, padded, uniform
from tests.strategies import unhurried
from thinwire.codecs import Bitmap, DeltaVarint, EliasFano, Rice, RunLength, Split
from thinwire.errors import WireError
from thinwire.kernels import index_dtype, strictly_increasing
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

GOLDEN = Path(__file__).parents[1] / "golden"
CODECS = {
    "bitmap": Bitmap(),
    "elias_fano": EliasFano(),
    "rice": Rice(),
    "delta_varint": DeltaVarint(),
    "run_length": RunLength(),
}
SQUARES = sorted({37 * i * i % 5003 for i in range(400)})
brisk = settings(unhurried, max_examples=30)
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def test_tags_do_not_change():
    assert [codec.tag for codec in CODECS.values()] == [2, 3, 4, 5, 6]


@every_codec
@brisk
@given(lists())
def test_a_list_comes_back(codec, drawn):
    size, indices = drawn
    nnz = len(indices)
    section, by_reference = both(lambda: codec.encode(indices, size))
    assert torch.equal(section, by_reference)
    assert codec.nbytes(size, nnz) in (None, len(section))
    answers = both(lambda: codec.decode(padded(section), size, nnz))
    for read in (*answers, codec.decode(section, size, nnz)):
        assert torch.equal(read, indices)
        assert read.dtype == index_dtype(size)


def agree_or_refuse(codec, section, size, nnz):
    fast, plain = both(lambda: codec.decode(section, size, nnz))
    if isinstance(fast, str) or isinstance(plain, str):
        assert fast == plain
        return
    assert torch.equal(fast, plain)
    assert len(fast) == nnz
    assert strictly_increasing(fast, size)


@every_codec
@brisk
@given(lists(), st.data())
def test_changed_bits_are_refused_or_another_list(codec, drawn, data):
    size, indices = drawn
    section = padded(codec.encode(indices, size))
    places = st.integers(0, 8 * len(section) - 1)
    if len(section):
        for place in data.draw(st.lists(places, min_size=1, max_size=4)):
            section[place // 8] ^= 1 << place % 8
    agree_or_refuse(codec, section, size, len(indices))


@every_codec
@brisk
@given(
    st.binary(max_size=64),
    st.sampled_from([0, 1, 64, 100, 2**31 - 1, 2**31, 2**40]),
    st.integers(0, 70),
)
def test_random_bytes_are_refused_or_a_list(codec, data, size, nnz):
    section = torch.tensor(list(data), dtype=torch.uint8)
    agree_or_refuse(codec, section, size, nnz)


@every_codec
@brisk
@given(lists(), st.data())
def test_too_few_and_too_many_bytes_are_refused(codec, drawn, data):
    size, indices = drawn
    section = codec.encode(indices, size)
    cut = section[: data.draw(st.integers(0, len(section)))]
    longer = torch.cat([padded(section), torch.zeros(8, dtype=torch.uint8)])
    for received in (cut, longer):
        if len(received) == len(section):
            continue
        for answer in both(lambda: codec.decode(received, size, len(indices))):  # noqa: B023
            assert answer == "refused"


@every_codec
@brisk
@given(lists(), st.integers(0, 7), st.data())
def test_another_number_of_entries_is_refused_or_another_list(codec, drawn, more, data):
    size, indices = drawn
    section = padded(codec.encode(indices, size))
    nnz = data.draw(st.sampled_from([max(len(indices) - more, 0), len(indices) + more]))
    agree_or_refuse(codec, section, size, min(nnz, size))


@pytest.mark.parametrize("name", [name for name in CODECS if name != "bitmap"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**40])
@pytest.mark.parametrize("kind", ["spread", "first", "last"])
def test_the_index_type_follows_the_size(name, size, kind):
    codec = CODECS[name]
    if kind == "spread":
        indices = (uniform(1000, 300).long() * (size // 1000)).to(index_dtype(size))
    else:
        indices = edge(size, 300, seed=kind == "last")
    for answer in both(lambda: codec.encode(indices, size)):
        read = codec.decode(answer, size, len(indices))
        assert torch.equal(read, indices)
        assert read.dtype == index_dtype(size)


@every_codec
def test_impossible_counts_are_refused_before_allocating(codec):
    section = torch.zeros(16, dtype=torch.uint8)
    for nnz in (2**31, 2**40):
        with pytest.raises(WireError):
            codec.decode(section, 2**40, nnz)


@every_codec
@pytest.mark.parametrize("indices", [[5, 3], [3, 3], [-1, 4], [0, 9_000]], ids=str)
def test_invalid_indices_are_refused_or_decode_to_a_list(codec, indices):
    indices = torch.tensor(indices, dtype=torch.int32)
    try:
        section = codec.encode(indices, 64)
    except IndexError:
        return
    agree_or_refuse(codec, section, 64, len(indices))


@pytest.mark.parametrize("name", CODECS)
def test_golden_bytes(name):
    values = torch.arange(len(SQUARES)) / 2
    vector = SparseVector(torch.tensor(SQUARES, dtype=torch.int32), values, 5003)
    golden = (GOLDEN / name / "squares_of_5003.bin").read_bytes()
    split = Split(CODECS[name], checksum=False)
    assert bytes(split.encode(vector).body.tolist()) == golden
    body = torch.frombuffer(bytearray(golden), dtype=torch.uint8)
    read = split.decode(Packet.parse(body), 5003, len(SQUARES))
    assert read.indices.tolist() == SQUARES
    assert torch.equal(read.values, values)
