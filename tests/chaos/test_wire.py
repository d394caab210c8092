"""A bit that is flipped in a TCP stream between two real ranks is a typed error."""

from dataclasses import replace

import pytest
from chaos.conductor import run
from chaos.plan import Fault
from chaos.wire import Flip, sum_up

from tests.chaos.test_rounds import PLAIN
from thinwire.tools.lab import doctor


@pytest.mark.lab
@pytest.mark.processes
def test_a_flipped_bit_of_a_packet_is_noticed():
    missing = doctor.missing()
    if missing:
        pytest.skip(f"no lab can be built here: {'; '.join(missing)}")
    # The seed of a flip that waits for a frame with a list.
    flip = Fault("flipped stream", 4, (0,), detail=0)
    plan = replace(
        PLAIN,
        method="spardl",
        options={**PLAIN.options, "density": 0.3},
        rows=0,
        lab=True,
        timeout=3.0,
        passing=(),
        endings=(flip, None),
    )
    outcome = run(plan)
    assert outcome.wrong == [], outcome.folder
    # The rank that gets it says so; the other one misses it.
    assert outcome.faults == ["flipped stream (PeerError + WireError)"]


def frame(payload, port):
    """An Ethernet frame with IPv4 and TCP."""
    tcp = port.to_bytes(2, "big") + bytes([0, 7]) + bytes(8) + b"\x50" + bytes(7)
    length = (20 + len(tcp) + len(payload)).to_bytes(2, "big")
    ip = b"\x45\x00" + length + bytes(5) + b"\x06" + bytes(2) + bytes(range(8))
    return bytearray(bytes(12) + b"\x08\x00" + ip + tcp + payload)


def test_a_sum_is_the_one_that_tcp_checks():
    whole = frame(b"abc", 5000)
    sum_up(whole)
    # RFC 793: with the sum in its place, all words add up to ones.
    given = whole[26:34] + bytes([0, 6, 0, 23]) + whole[34:] + b"\0"
    total = sum(int.from_bytes(given[i : i + 2], "big") for i in range(0, 36, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


def test_one_bit_of_the_payload_is_flipped_but_not_the_stores():
    before = frame(bytes(300), 5000)
    after = bytearray(before)
    assert Flip(1, spared=9).done(after)
    bits = [(a ^ b).bit_count() for a, b in zip(before, after, strict=True)]
    assert sum(bits) == 1
    assert bits.index(1) >= 54
    assert not Flip(1, spared=5000).done(after)
    assert not Flip(1, spared=9).done(frame(b"", 5000))
