"""Bloom: damaged filters and invalid settings are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.codecs.deepreduce_inputs import octets, supports, verdict
from tests.codecs.test_bloom import POLICIES, RATES
from tests.strategies import unhurried
from thinwire.codecs import Bloom, Split
from thinwire.codecs.bloom import shape_of
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import strictly_increasing
from thinwire.wire import Packet


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("c95e", "2 bytes where 3 are expected"),
        ("c95e62000000000000", "9 bytes where 3 are expected"),
        ("c95e6201", "set beyond the 24"),
        ("c95e620000000080", "set beyond the 24"),
        ("000000", "only 0 of 16 elements answer for 5"),
        ("895e62", "only 4 of 16 elements answer for 5"),
    ],
)
def test_a_damaged_filter_is_refused(data, said):
    for policy in POLICIES:
        with pytest.raises(WireError, match=said):
            Bloom(policy, fpr=0.1).decode(octets(bytes.fromhex(data)), 16, 5)


def test_spare_bits_of_the_last_byte_are_zero():
    with pytest.raises(WireError, match="set beyond the 17"):
        Bloom(fpr=0.2).decode(octets([0xC5, 0x4F, 0x03]), 16, 5)


@pytest.mark.parametrize("policy", ["p0", "p1", "p2"])
def test_a_filter_that_is_full_is_refused_early(policy):
    size = 2**31  # a scan of all would take minutes
    full = octets([255]).expand(Bloom("p1").nbytes(size, 1000)).clone()
    full[-1] >>= -shape_of(size, 1000).bits % 8
    with pytest.raises(WireError, match=r"more than \d+ of 2147483648 elements"):
        Bloom(policy).decode(full, size, 1000)


@unhurried
@given(supports(), RATES, st.sampled_from(POLICIES), st.data())
def test_a_changed_filter_is_refused_or_read_as_a_list(support, fpr, policy, data):
    size, indices = support
    codec = Bloom(policy, fpr)
    section = codec.encode(indices, size)
    for _ in range(data.draw(st.integers(0, 3)) if len(section) else 0):
        at = data.draw(st.integers(0, len(section) - 1))
        section[at] ^= data.draw(st.integers(1, 255))
    section = section[: data.draw(st.sampled_from([len(section), len(section) // 2]))]
    read = verdict(codec.with_key(3).decode, section, size, len(indices))
    if read is not None:
        assert strictly_increasing(read, size)
        assert len(read) >= len(indices)
    bits, hashes, most = shape_of(size, len(indices), fpr)
    backends = [
        verdict(k.bloom_positives, section, size, most, bits=bits, hashes=hashes)
        for k in (cpu, reference)
    ]
    assert (backends[0] is None) == (backends[1] is None)
    if backends[0] is not None:
        assert torch.equal(*backends)


@pytest.mark.parametrize("policy", ["P2", "", "p3"])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(ConfigError, match=f"policy is '{policy}': give one of p0, p1"):
        Bloom(policy)


@pytest.mark.parametrize("fpr", [0.0, -0.1, 1.0, 1e-13, float("nan")])
def test_a_rate_that_makes_no_filter_is_refused(fpr):
    with pytest.raises(ConfigError, match="fpr is"):
        Bloom(fpr=fpr)


def test_vectors_beyond_32_bits_are_refused():
    with pytest.raises(ConfigError, match=r"4294967297 elements.*scope"):
        Bloom().encode(torch.tensor([0]), 2**32 + 1)
    with pytest.raises(ConfigError, match=r"takes \d+ bits.*larger fpr"):
        Bloom().nbytes(2**32, 2**30)


@pytest.mark.parametrize("policy", POLICIES)
def test_more_entries_than_a_filter_can_hold_are_refused(policy):
    codec = Split(Bloom(policy), checksum=False)
    packet = Packet.build((codec.index.tag, 1), 2**31, 2**30, (octets(b""),) * 2)
    with pytest.raises(WireError, match="more than a hash can tell apart"):
        codec.decode(packet, 2**31)
    with pytest.raises(WireError, match="more than a hash can tell apart"):
        codec.index.decode(octets(b""), 2**31, 2**30)
