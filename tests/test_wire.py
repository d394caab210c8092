"""Packets: the header has the stated fields, and each is checked."""

import struct

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import unhurried
from thinwire.errors import ConfigError, WireError
from thinwire.wire import HEADER, Packet, header_of, padded


def section(data):
    return torch.tensor(list(data), dtype=torch.uint8)


def packet():
    """Three entries of a vector of ten: 32 + 16 + 16 bytes."""
    return Packet.build((1, 2), 10, 3, (section(b"i" * 12), section(b"v" * 12)))


def edited(offset, form, value):
    """The packet's bytes with one field of the header changed."""
    data = bytearray(packet().body.tolist())
    struct.pack_into("<" + form, data, offset, value)
    return section(data)


@unhurried
@given(
    st.tuples(st.integers(0, 255), st.integers(0, 255)),
    st.integers(0, 2**40),
    st.integers(0, 2**32 - 1),
    st.tuples(st.binary(max_size=40), st.binary(max_size=40)),
)
def test_parse_reads_what_build_wrote(tags, size, nnz, sections):
    nnz = min(size, nnz)
    built = Packet.build(tags, size, nnz, tuple(map(section, sections)))
    read = Packet.parse(built.body)
    assert (read.tags, read.size, read.nnz) == (tags, size, nnz)
    assert read.index_nbytes == built.index_nbytes
    assert len(built.body) % 8 == 0
    for mine, given_ in zip(read.sections, sections, strict=True):
        filled = bytes(mine.tolist())
        assert filled == given_.ljust(padded(len(given_)), b"\0")


def test_the_header_byte_by_byte():
    body = bytes(packet().body.tolist())
    assert body[:8] == b"TW" + bytes([1, 0, 1, 2, 0, 0])
    assert body[8:16] == (10).to_bytes(8, "little")
    assert body[16:32] == struct.pack("<4I", 3, 2, 8, 0)
    assert body[32:] == (b"i" * 12 + bytes(4)) + (b"v" * 12 + bytes(4))


@pytest.mark.parametrize(
    ("offset", "form", "value", "said"),
    [
        (0, "2s", b"WT", "begins with b'WT'"),
        (2, "B", 0, "format 0"),
        (2, "B", 2, "format 2.*same release"),
        (3, "B", 1, "checksum"),
        (3, "B", 2, "reserves"),
        (6, "H", 0x100, "reserves"),
        (28, "I", 1, "reserves"),
        (24, "I", 7, "says 56 bytes and has 64"),
        (24, "I", 9, "says 72 bytes and has 64"),
        (24, "I", 2**32 - 1, "says 34359738360 bytes"),
        (20, "I", 5, "index section of 40 bytes does not fit"),
        (20, "I", 2**32 - 1, "does not fit"),
        (8, "Q", 2, "lists 3 entries of a vector of 2"),
        (16, "I", 11, "lists 11 entries of a vector of 10"),
    ],
)
def test_every_field_is_checked(offset, form, value, said):
    with pytest.raises(WireError, match=said):
        Packet.parse(edited(offset, form, value))


@pytest.mark.parametrize("length", [0, 1, 31])
def test_less_than_a_header_is_refused(length):
    for read in (Packet.parse, Packet.announced):
        with pytest.raises(WireError, match="shorter than its header"):
            read(packet().body[:length])


@pytest.mark.parametrize("change", [-32, -8, -1, 1, 8])
def test_another_length_than_announced_is_refused(change):
    body = torch.cat([packet().body, torch.zeros(8, dtype=torch.uint8)])
    with pytest.raises(WireError, match="says 64 bytes and has"):
        Packet.parse(body[: 64 + change])


def test_announced_finds_the_end_of_the_first_packet():
    two = torch.cat([packet().body, packet().body])
    assert Packet.announced(two) == Packet.announced(packet().body) == 64
    strided = torch.stack([two, two], 1)[:, 0]
    assert Packet.announced(strided) == 64


@pytest.mark.parametrize("words", [0, 3, 9, 2**32 - 1])
def test_announced_believes_no_length_it_cannot_see(words):
    with pytest.raises(WireError, match=f"says {8 * words} bytes where 64 are left"):
        Packet.announced(edited(24, "I", words))


@pytest.mark.parametrize("offset", [0, 2])
def test_announced_reads_only_packets(offset):
    with pytest.raises(WireError, match=r"begins with|format"):
        Packet.announced(edited(offset, "B", 77))


@pytest.mark.parametrize(("nnz", "nbytes"), [(2**32, 0), (1, 2**35)])
def test_what_does_not_fit_a_packet_is_refused(nnz, nbytes):
    long = torch.zeros(1, dtype=torch.uint8).expand(nbytes)
    with pytest.raises(ConfigError, match="does not fit one packet"):
        Packet.build((1, 1), 2**40, nnz, (section(b""), long))
    with pytest.raises(ConfigError, match="does not fit one packet"):
        header_of((1, 1), 2**40, nnz, (0, nbytes))


def test_a_header_is_four_words():
    assert HEADER.size == 32
    assert [padded(n) for n in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]


@unhurried
@given(st.binary(max_size=40), st.data())
def test_a_checksum_notices_any_change(content, data):
    sections = section(content), section(b"v" * 12)
    body = Packet.build((1, 2), 100, 3, sections, checksum=True).body
    assert Packet.parse(body).summed
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        Packet.parse(body)


def test_the_checksum_is_xxh3_of_the_packet_without_it():
    body = bytes(
        Packet.build(
            (1, 2), 10, 3, (section(b"i"), section(b"v")), checksum=True
        ).body.tolist()
    )
    blank = body[:28] + bytes(4) + body[32:]
    assert body[28:32] == (xxhash.xxh3_64_intdigest(blank) & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
