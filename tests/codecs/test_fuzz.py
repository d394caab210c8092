"""Every codec, without a checksum, on damaged and random sections.

A refusal or a valid list, and the same from both backends.
"""

import struct
from contextlib import nullcontext
from itertools import cycle

import pytest
import torch
from fuzz.verdicts import (
    RESERVED,
    SETTINGS,
    Received,
    both,
    codec_of,
    reaching,
    tensor_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import ANY, WHOLE, unhurried, vectors
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS, codec
from thinwire.codecs import Split
from thinwire.errors import WireError
from thinwire.kernels import by_reference
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER, Packet

# Every index codec and every value codec, and those that have to do with each other.
PAIRS = [f"{i}+{v}" for i, v in zip(cycle(INDEX_CODECS), VALUE_CODECS, strict=False)]
PAIRS += ["int32+fit-poly", "int32+fit-dexp", "bloom-p0+fit-poly", "rice+log4"]

brisk = settings(unhurried, max_examples=20)
OCTET = st.integers(0, 255)
SECTION = st.binary(max_size=64).map(tensor_of)
NUMBERS = st.one_of(st.integers(0, 70), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]))


@st.composite
def damaged(draw, body):
    """Some bytes of a packet overwritten, cut out, doubled or invented."""
    data = bytearray(body)
    for kind in draw(st.lists(st.sampled_from("oocdi"), min_size=1, max_size=4)):
        at = draw(st.integers(0, len(data)))
        if kind == "o":
            data[at : at + 1] = bytes([draw(OCTET)])
        elif kind == "c":
            del data[at : at + draw(st.integers(1, 16))]
        elif kind == "d":
            data[at:at] = data[at : at + 8 * draw(st.integers(1, 4))]
        else:
            data[at:at] = draw(st.binary(max_size=24))
    return bytes(data)


def check(received):
    fast, plain = both(received)
    assert fast == plain


def test_every_codec_is_among_them():
    for names, place in ((INDEX_CODECS, 0), (VALUE_CODECS, 1)):
        assert {pair.split("+")[place] for pair in PAIRS} == set(names)


@pytest.mark.parametrize("name", PAIRS)
@brisk
@given(vectors(values=st.one_of(WHOLE, ANY)), st.data())
def test_a_damaged_packet_is_refused_or_a_list(name, vector, data):
    tags = codec(name).index.tag, codec(name).value.tag
    chosen = data.draw(st.sampled_from(SETTINGS))
    body = bytearray(codec_of(tags, chosen).encode(vector).body.tolist())
    struct.pack_into("<H", body, RESERVED, chosen)
    check(reaching(bytes(body)))
    check(reaching(data.draw(damaged(bytes(body)))))


@pytest.mark.parametrize("name", PAIRS)
@brisk
@given(NUMBERS, NUMBERS, st.tuples(SECTION, SECTION), st.integers(0, 63))
def test_random_sections_are_refused_or_a_list(name, size, nnz, sections, chosen):
    whole = codec(name)
    tags = whole.index.tag, whole.value.tag
    packet = Packet.build(tags, size, nnz, sections)
    body = bytearray(packet.body.tolist())
    struct.pack_into("<H", body, RESERVED, chosen)
    check(reaching(bytes(body)))


def test_settings_missing_from_packets_are_fuzzed():
    tried = [codec_of((17, 5), chosen) for chosen in SETTINGS]
    assert len({each.index.fpr for each in tried}) == 3
    assert len({(each.value.levels, each.value.bucket) for each in tried}) == 3
    assert len({codec_of((1, 8), chosen).value.degree for chosen in SETTINGS}) == 3


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("half", [0, 1], ids=["index", "value"])
def test_a_section_that_is_a_word_too_long_is_refused(name, half):
    vector = SparseVector.of({3 * i: (i - 7) * 1.5 for i in range(19)}, size=60)
    tags = codec(name).index.tag, codec(name).value.tag
    for chosen in SETTINGS:
        whole = codec_of(tags, chosen)
        sections = list(whole.encode(vector).sections)
        sections[half] = torch.cat([sections[half], torch.zeros(8, dtype=torch.uint8)])
        packet = Packet.build(tags, 60, 19, tuple(sections))
        assert both(Received(whole, packet)) == (None, None)


@unhurried
@given(vectors(), st.data())
def test_any_bytes_are_a_packet_or_refused(vector, data):
    body = data.draw(damaged(bytes(Split().encode(vector).body.tolist())))
    try:
        packet = Packet.parse(tensor_of(body))
    except WireError:
        return
    assert packet.nnz <= packet.size
    assert HEADER.size + sum(map(len, packet.sections)) == len(body)
    assert torch.equal(packet.body, tensor_of(body))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_a_packet_may_begin_anywhere(name, offset):
    vector = SparseVector.of({3 * i: (i - 7) * 1.5 for i in range(19)}, size=60)
    whole = codec(name)
    body = whole.encode(vector).body
    moved = torch.cat([torch.zeros(offset, dtype=torch.uint8), body])[offset:]
    for backend in (nullcontext(), by_reference()):
        with backend:
            read = whole.decode(Packet.parse(moved), 60)
            known = whole.decode(Packet.parse(body), 60)
        assert torch.equal(read.indices, known.indices)
        assert torch.equal(read.values, known.values)
