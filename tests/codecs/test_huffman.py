"""Huffman: round trips, sizes, and invalid streams."""

import struct
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.deepreduce_inputs import octets, scattered, supports, verdict
from tests.strategies import unhurried
from thinwire.codecs import Float32, Huffman, Split
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import index_dtype, strictly_increasing
from thinwire.sparse import SparseVector
from thinwire.wire import Packet, padded

GOLDEN = Path(__file__).parents[1] / "golden" / "huffman" / "five_of_100000.bin"
FIVE = {0: 1.0, 1: -2.0, 255: 0.5, 256: 3.0, 99_999: -4.0}


def section_of(stream, spare=b""):
    return octets(struct.pack("<Q", len(stream)) + stream + spare)


def deflated(planes):
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(bytes(planes)) + coder.flush()


@unhurried
@given(supports())
def test_indices_come_back(support):
    size, indices = support
    section = Huffman().encode(indices, size)
    for spare in (0, padded(len(section)) - len(section)):
        filled = torch.cat([section, torch.zeros(spare, dtype=torch.uint8)])
        read = Huffman().decode(filled, size, len(indices))
        assert torch.equal(read, indices)
        assert read.dtype == indices.dtype


@pytest.mark.parametrize("size", [2**31 - 1, 2**31])
def test_the_index_type_follows_the_size(size):
    indices = torch.tensor([0, size - 1], dtype=index_dtype(size))
    section = Huffman().encode(indices, size)
    read = Huffman().decode(section, size, 2)
    assert read.tolist() == [0, size - 1]
    assert read.dtype == index_dtype(size)


@pytest.mark.parametrize(
    ("size", "nnz", "bits"),
    [(36_864, 368, 20.8), (2**24, 2**24 // 100, 20.0), (2**24, 2**24 // 1000, 23.1)],
)
def test_bits_per_index(size, nnz, bits):
    section = Huffman().encode(scattered(size, nnz), size)
    assert 8 * (section.numel() - 8) / nnz == pytest.approx(bits, abs=0.2)


def test_golden_bytes_decode():
    codec = Split(Huffman(), Float32(), checksum=False)
    packet = Packet.parse(octets(GOLDEN.read_bytes()))
    assert codec.decode(packet, 100_000, 5).to_dict() == FIVE
    again = codec.encode(SparseVector.of(FIVE, 100_000))
    assert codec.decode(again, 100_000, 5).to_dict() == FIVE


def test_another_deflate_stream_of_the_same_bytes_is_read():
    planes = [3, 200, 1] + [0, 0, 1] + 6 * [0]
    read = Huffman().decode(section_of(deflated(planes)), 300, 3)
    assert read.tolist() == [3, 200, 257]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (octets(b""), "no length in 0 bytes"),
        (octets(bytes(7)), "no length in 7 bytes"),
        (
            section_of(deflated([3, 0, 0, 0]), bytes(8)),
            "up to byte 14 in a section of 22",
        ),
        (section_of(deflated([3, 0, 0, 0]), b"\1"), "up to byte 14 in a section of 15"),
        (octets(struct.pack("<Q", 2**63) + bytes(8)), "up to byte 922337"),
        (section_of(deflated([3, 0, 0, 0]) + b"\0"), "end after 4 bytes"),
        (section_of(deflated([3, 0, 0, 0])[:-1]), "end after 4 bytes"),
        (section_of(deflated([3, 0, 0])), "a stream of 3 bytes where 4 are expected"),
        (section_of(deflated(bytes(10**6))), "end after 4 bytes"),
        (section_of(b""), "end after 4 bytes"),
        (section_of(b"\xff"), "invalid block type"),
        (section_of(deflated([10, 0, 0, 0])), "from 0 up to 10"),
        (section_of(deflated([0, 0, 0, 255])), "from 0 up to 10"),
    ],
)
def test_a_stream_that_is_no_list_is_refused(section, said):
    with pytest.raises(WireError, match=f"Huffman: .*{said}"):
        Huffman().decode(section, 10, 1)


def test_indices_that_fall_are_refused():
    for pair in ([4, 3], [4, 4]):
        with pytest.raises(WireError, match="do not increase strictly"):
            Huffman().decode(section_of(deflated([*pair, *6 * [0]])), 10, 2)


@unhurried
@given(supports(), st.data())
def test_a_changed_section_is_refused_or_read_as_a_list(support, data):
    size, indices = support
    section = Huffman().encode(indices, size)
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    section = section[: data.draw(st.integers(0, len(section)))]
    read = verdict(Huffman().decode, section, size, len(indices))
    if read is not None:
        assert len(read) == len(indices)
        assert strictly_increasing(read, size)


@unhurried
@given(st.binary(max_size=60), st.integers(0, 10))
def test_random_bytes_are_refused_or_read_as_a_list(data, nnz):
    for section in (octets(data), section_of(data)):
        read = verdict(Huffman().decode, section, 1000, nnz)
        assert read is None or strictly_increasing(read, 1000)


def test_a_vector_beyond_32_bits_is_refused():
    with pytest.raises(ConfigError, match=r"2147483649 elements.*scope"):
        Huffman().encode(torch.tensor([0]), 2**31 + 1)
