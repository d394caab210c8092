"""Deflate and Zstd: lossless; invalid streams are refused."""

import struct
import sys
import tracemalloc
import zlib

import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.value_checks import (
    ANY_VALUES,
    LISTS,
    SIZES,
    accepts,
    check_damage,
    golden_packet,
    golden_values,
    round_trip,
    spread,
    to_bits,
    wave,
)
from tests.strategies import unhurried
from thinwire.codecs import Deflate, Zstd
from thinwire.errors import ConfigError, WireError

CODECS = [Deflate(), Deflate(0), Deflate(9), Zstd(), Zstd(1), Zstd(22)]
BOTH = pytest.mark.parametrize("codec", [Deflate(), Zstd()], ids=str)


def section_of(stream, length=None):
    length = len(stream) if length is None else length
    return torch.tensor(list(struct.pack("<Q", length) + stream), dtype=torch.uint8)


def compress(codec, data):
    if isinstance(codec, Deflate):
        return zlib.compress(data)
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_every_bit_comes_back(name, codec):
    for size in SIZES:
        values = LISTS[name](size)
        assert to_bits(round_trip(codec, values)) == to_bits(values)


@unhurried
@given(ANY_VALUES, st.sampled_from(CODECS))
def test_every_bit_of_any_values_comes_back(values, codec):
    assert to_bits(round_trip(codec, values)) == to_bits(values)


@BOTH
def test_constant_values_take_few_bytes(codec):
    assert codec.encode(torch.ones(100_000)).numel() < 2000


@BOTH
def test_no_values_are_a_length_of_zero(codec):
    assert codec.encode(torch.empty(0)).tolist() == [0] * 8
    stream = compress(codec, b"")
    said = f"a stream of {len(stream)} bytes where none is expected"
    with pytest.raises(WireError, match=f"{type(codec).__name__}: {said}"):
        codec.decode(section_of(stream), 0)


def test_a_stream_of_another_length_says_both():
    stream = compress(Deflate(), bytes(39))
    with pytest.raises(WireError, match="Deflate: a stream of 39 bytes where 40 are"):
        Deflate().decode(section_of(stream), 10)


@BOTH
@pytest.mark.parametrize("count", [0, 39, 41, 10_000_000])
def test_another_number_of_bytes_is_refused(codec, count):
    stream = compress(codec, bytes(count))
    with pytest.raises(WireError, match=f"{type(codec).__name__}: "):
        codec.decode(section_of(stream), 10)


@BOTH
def test_a_bomb_takes_no_memory(codec):
    section = section_of(compress(codec, bytes(50_000_000)))
    tracemalloc.start()
    assert not accepts(codec, section, 10)
    assert tracemalloc.get_traced_memory()[1] < 2**20 + 4 * section.numel()
    tracemalloc.stop()


@BOTH
@pytest.mark.parametrize("garbage", [b"\0", b"garbage", bytes(8)])
def test_garbage_after_the_stream_is_refused(codec, garbage):
    stream = compress(codec, bytes(40))
    assert accepts(codec, section_of(stream), 10)
    assert not accepts(codec, section_of(stream + garbage), 10)
    # Beyond the length it states, a section may hold the zeros of a whole word.
    fits = len(garbage) <= -len(stream) % 8 and not any(garbage)
    assert accepts(codec, section_of(stream + garbage, len(stream)), 10) == fits
    assert not accepts(codec, section_of(stream * 2), 10)


@BOTH
@pytest.mark.parametrize("length", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_a_wrong_length_is_refused(codec, length):
    stream = compress(codec, bytes(40))
    assert not accepts(codec, section_of(stream, length), 10)


@BOTH
def test_another_format_is_refused(codec):
    other = Zstd() if isinstance(codec, Deflate) else Deflate()
    assert not accepts(codec, other.encode(wave(10)), 10)


def frame(window, content):
    """An empty Zstandard frame that claims a window and a content of some size."""
    # Magic number; an 8-byte content size; the window's exponent; one last raw block.
    head = bytes.fromhex("28b52ffd") + bytes([0xC0, (window - 10) << 3])
    return head + struct.pack("<Q", content) + bytes([1, 0, 0])


@pytest.mark.parametrize("content", [0, 39, 40, 2**32, 2**62])
@pytest.mark.parametrize("window", [10, 27, 41])
def test_a_frame_with_a_large_content_size_is_refused(window, content):
    section = section_of(frame(window, content))
    tracemalloc.start()
    assert not accepts(Zstd(), section, 10)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_frame_shorter_than_its_content_needs_is_refused():
    values = torch.zeros(2**20)  # as few bytes as there can be
    section = Zstd(22).encode(values)
    assert torch.equal(Zstd().decode(section, len(values)), values)
    stream = frame(31, 2**31)
    with pytest.raises(WireError, match=f"Zstd: a frame of {len(stream)} bytes for"):
        Zstd().decode(section_of(stream), 2**29)


def test_a_frame_without_a_size_is_refused():
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(40))
    with pytest.raises(WireError, match="Zstd: a frame that does not end after 40"):
        Zstd().decode(section_of(stream), 10)


def test_a_frame_that_takes_much_memory_is_refused():
    with pytest.raises(WireError, match="Zstd: a frame that takes 134217728 bytes"):
        Zstd().decode(section_of(frame(27, 40)), 10)


@unhurried
@given(ANY_VALUES, st.sampled_from(CODECS), st.data())
def test_damage_is_refused_or_read(values, codec, data):
    check_damage(codec, data, values)


@pytest.mark.parametrize(
    ("make", "level"), [(Deflate, -2), (Deflate, 10), (Zstd, 0), (Zstd, 23)]
)
def test_impossible_levels_are_refused(make, level):
    with pytest.raises(ConfigError, match=f"level is {level}: "):
        make(level)


@pytest.mark.parametrize(
    ("codec", "name"), [(Deflate(), "deflate/300.bin"), (Zstd(), "zstd/300.bin")]
)
def test_golden_bytes(codec, name):
    _, packet = golden_packet(codec, spread(wave(300)), name)
    assert to_bits(golden_values(codec, packet)) == to_bits(wave(300))


def test_without_zstandard_the_error_names_the_extra(monkeypatch):
    section = Zstd().encode(torch.zeros(3))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for call in (
        lambda: Zstd().encode(torch.zeros(3)),
        lambda: Zstd().decode(section, 3),
    ):
        with pytest.raises(ConfigError, match=r"pip install 'thinwire\[zstd\]'"):
            call()
