"""Split: golden bytes, every check, and damaged bytes."""

import struct
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ANY, unhurried, vectors
from thinwire.codecs import (
    QSGD,
    BFloat16,
    Bitmap,
    Bloom,
    EliasFano,
    FitPoly,
    Float16,
    Float32,
    Int8,
    Int32,
    LogQuant,
    Rice,
    Split,
    Tiers,
)
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import by_reference, index_dtype, strictly_increasing
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER, Packet

GOLDEN = Path(__file__).parents[1] / "golden" / "split" / "1-1" / "five_of_300.bin"
FIVE = SparseVector.of({0: 1.0, 1: -2.5, 7: 0.0, 64: 3e-39, 299: float("inf")}, 300)

# Without a checksum, so that a change reaches the decoder.
RAW = Split(checksum=False)


def body_of(data):
    return torch.tensor(list(data), dtype=torch.uint8)


def decode(data, size=300, nnz=None):
    return RAW.decode(Packet.parse(body_of(data)), size, nnz)


def valid(vector, size=300):
    assert vector.size == size
    assert len(vector.indices) == len(vector.values)
    assert vector.indices.dtype == index_dtype(size)
    return strictly_increasing(vector.indices, size)


def test_golden_bytes_decode():
    assert decode(GOLDEN.read_bytes(), 300, 5).to_dict() == FIVE.to_dict()


def test_golden_bytes_are_still_written():
    assert bytes(RAW.encode(FIVE).body.tolist()) == GOLDEN.read_bytes()


@pytest.mark.parametrize(("nnz", "nbytes"), [(0, 32), (1, 48), (2, 48), (3, 64)])
def test_a_packet_is_a_header_and_two_sections_in_whole_words(nnz, nbytes):
    assert RAW.nbytes(1000, nnz) == nbytes


@unhurried
@given(vectors(values=ANY))
def test_every_bit_comes_back(vector):
    packet = RAW.encode(vector)
    assert packet.body.numel() == RAW.nbytes(vector.size, vector.nnz)
    assert torch.equal(packet.body, RAW.encode(vector, key=7).body)
    read = RAW.decode(Packet.parse(packet.body), vector.size, vector.nnz)
    assert torch.equal(read.indices, vector.indices)
    bits = read.values.view(torch.int32), vector.values.view(torch.int32)
    assert torch.equal(*bits)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ((301, None), "for a vector of 300, not 301"),
        ((299, None), "for a vector of 300, not 299"),
        ((300, 4), "lists 5 entries, not 4"),
        ((300, 6), "lists 5 entries, not 6"),
    ],
)
def test_another_list_than_expected_is_refused(expected, said):
    with pytest.raises(WireError, match=said):
        decode(GOLDEN.read_bytes(), *expected)


def test_another_codec_than_agreed_is_refused():
    coarse = Split(Int32(), BFloat16(), checksum=False)
    with pytest.raises(WireError, match=r"tags \(1, 2\) where \(1, 1\).*same codec"):
        RAW.decode(coarse.encode(FIVE), 300)
    with pytest.raises(WireError, match=r"tags \(1, 1\) where \(1, 2\)"):
        coarse.decode(RAW.encode(FIVE), 300)


def test_a_length_that_does_not_follow_from_the_entries_is_refused():
    index, value = RAW.encode(FIVE).sections
    spare = torch.zeros(8, dtype=torch.uint8)
    for sections in ((index, torch.cat([value, spare])), (index, value[:-8])):
        packet = Packet.build((1, 1), 300, 5, sections)
        with pytest.raises(WireError, match="bytes where 5 entries take 80"):
            RAW.decode(packet, 300)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (2, "Float32: 32 bytes where 20"),
        (4, "Float32: 16 bytes where 20"),
    ],
)
def test_an_edge_between_the_sections_in_the_wrong_place_is_refused(words, said):
    data = bytearray(GOLDEN.read_bytes())
    struct.pack_into("<I", data, 20, words)
    with pytest.raises(WireError, match=said):
        decode(data)


def test_any_change_of_one_byte_is_refused_or_decodes_to_a_valid_list():
    data = GOLDEN.read_bytes()
    refused = 0
    for position in range(len(data)):
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(data)
            changed[position] ^= bits
            try:
                assert valid(decode(changed, 300, 5)), (position, bits)
            except WireError:
                refused += 1
    assert refused >= 9 * HEADER.size  # no byte of the header is idle


@unhurried
@given(st.binary(max_size=80))
def test_random_bytes_are_refused(data):
    with pytest.raises(WireError):
        decode(data)


@unhurried
@given(st.integers(0, 8), st.data())
def test_random_sections_are_refused_or_decode_to_a_valid_list(nnz, data):
    sections = [
        body_of(data.draw(st.binary(min_size=4 * nnz, max_size=4 * nnz)))
        for _ in range(2)
    ]
    packet = Packet.build((1, 1), 2**31 - 1, nnz, tuple(sections))
    with suppress(WireError):
        assert valid(RAW.decode(packet, 2**31 - 1), 2**31 - 1)


def test_big_endian_machines_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ConfigError, match="this machine's are big endian"):
        Split()


# Lengths follow from the entries, or a kernel looks for itself.
VALUES = [Float32(), BFloat16(), Float16(), Int8(), QSGD(), QSGD(200, 3)]
VALUES += [LogQuant(bits) for bits in range(3, 9)]
VALUES += [Tiers(share) for share in (2, 4, 8, 16)]
PADDED = [Split(EliasFano(), value, checksum=False) for value in VALUES]
PADDED += [
    Split(index, checksum=False) for index in (Int32(), Bitmap(), Bloom("naive"))
]
PADDED += [Split(Int32(), FitPoly(), checksum=False)]


def test_the_order_of_values_ends_in_zeros():
    codec = Split(Rice(), FitPoly(), checksum=False)
    body = codec.encode(FIVE).body
    codec.decode(Packet.parse(body), 300)
    start = HEADER.size + Packet.parse(body).index_nbytes
    for bit in range(15, 64):
        changed = body.clone()
        changed[start + bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match="the order of values: bits that are set"):
            codec.decode(Packet.parse(changed), 300)


@pytest.mark.parametrize("codec", PADDED, ids=str)
@pytest.mark.parametrize("half", [0, 1], ids=["index", "value"])
def test_bits_after_the_end_are_refused(codec, half):
    packet = codec.encode(FIVE)
    section = packet.sections[half]
    nbytes = (codec.index.nbytes(300, 5), codec.value.nbytes(5))[half]
    nbytes = len(section) if nbytes is None else nbytes
    places = list(range(8 * nbytes, 8 * len(section)))
    if half == 1 and isinstance(codec.value, LogQuant):
        places += range(8 * nbytes - (-5 * codec.value.bits % 8), 8 * nbytes)
    assert places or half == 1
    for bit in places:
        section[bit // 8] ^= 1 << bit % 8
        for backend in (nullcontext(), by_reference()):
            with backend, pytest.raises(WireError):
                codec.decode(packet, 300)
        section[bit // 8] ^= 1 << bit % 8
    codec.decode(packet, 300)


def test_ranks_compare_settings_missing_from_packets():
    codecs = [QSGD(), QSGD(100), QSGD(bucket=100), Bloom(), Bloom(fpr=0.1)]
    assert len({repr(codec) for codec in codecs}) == len(codecs)
    assert repr(QSGD(100)) in repr(Split(Bloom(fpr=0.1), QSGD(100)))
    assert repr(Bloom(fpr=0.1)) in repr(Split(Bloom(fpr=0.1), QSGD(100)))


@unhurried
@given(vectors())
def test_a_packet_written_at_once_is_the_same(vector):
    codec = Split(EliasFano(), BFloat16(), checksum=False)
    found = codec.encode(vector)
    wanted = Packet.build(
        (codec.index.tag, codec.value.tag),
        vector.size,
        vector.nnz,
        (
            codec.index.encode(vector.indices, vector.size),
            codec.value.encode(vector.values),
        ),
        checksum=False,
    )
    assert found.body.tolist() == wanted.body.tolist()
    assert replace(found, body=None) == replace(wanted, body=None)
