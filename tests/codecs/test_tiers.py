"""Tiers: worked bytes, the stated error and size, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.deepreduce_inputs import largest, relative_error, scattered
from tests.codecs.value_checks import (
    ANY_VALUES,
    LARGEST,
    LISTS,
    SIZES,
    check_damage,
    golden_packet,
    golden_values,
    round_trip,
    spread,
    to_bits,
    wave,
)
from tests.strategies import WHOLE, unhurried
from thinwire.codecs import Rice, Split, Tiers
from thinwire.codecs.tiers import tier_sizes
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import by_reference
from thinwire.sparse import SparseVector
from thinwire.wire import HEADER

SHARES = (2, 3, 4, 8, 16)
BY_HAND = torch.tensor([1.0, -2.0, 4.0, 8.0, 1.0, -1.0, 1.0, 1.0])


def test_eight_values_by_hand():
    # Half of them: 8, 4, 2 and the first 1. Of these 8 and 4, of these 8.
    section = Tiers(2).encode(BY_HAND)
    levels = section[:8].view(torch.bfloat16).tolist()
    assert levels == [1.0, 1.5, 4.0, 8.0]
    assert section[8:].tolist() == [0b100010, 0b1111, 0b1100, 0b10]
    read = round_trip(Tiers(2), BY_HAND)
    assert read.tolist() == [1.5, -1.5, 4.0, 8.0, 1.0, -1.0, 1.0, 1.0]


def check_values(values, share):
    """The sign of every value, and an error that is not larger than the values."""
    read = round_trip(Tiers(share), values)
    assert torch.equal(read.signbit(), values.signbit())
    assert len(set(read.abs().tolist())) <= max(1, len(tier_sizes(len(values), share)))
    finite = values.nan_to_num(0.0, 0.0, 0.0).double()
    scale = float(finite.abs().max()) if len(values) else 0.0
    if scale == 0:
        assert (read == 0).all()
        return
    error, norm = (float((v / scale).norm()) for v in (finite - read.double(), finite))
    # What float64 and sums in units of 2**-28 of the largest leave out.
    assert error <= norm * (1 + 1e-6)
    unit = max(2.0 ** torch.frexp(finite.abs().max())[1].item() / 2**21, 2.0**-146)
    assert (read.double() / unit % 1 == 0).all()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", LISTS)
def test_the_error_is_not_larger_than_the_values(name, share):
    for size in SIZES:
        check_values(LISTS[name](size), share)


@unhurried
@given(ANY_VALUES, st.sampled_from(SHARES))
def test_nor_is_it_of_any_values(values, share):
    check_values(values, share)


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        ("gaussian", {2: 0.024, 4: 0.045, 8: 0.063}),
        ("laplace", {2: 0.038, 4: 0.071, 8: 0.103}),
        ("student", {2: 0.08, 4: 0.16, 8: 0.24}),
    ],
)
def test_the_stated_error_of_the_largest_values(kind, errors):
    values = largest(kind, 10_000)[torch.randperm(10_000)]
    for share, error in errors.items():
        assert (
            0.5 * error
            < relative_error(round_trip(Tiers(share), values), values)
            <= error
        )


@pytest.mark.parametrize(("share", "bits"), [(2, 3.0), (4, 2.3334), (8, 1.7143)])
def test_the_stated_bits(share, bits):
    assert 8 * Tiers(share).nbytes(10**6) / 10**6 == pytest.approx(bits, abs=0.001)


def test_a_list_of_a_layer_takes_fewer_bytes_than_skcompress():
    # DeepReduce, figure 8: 0.34 % of a vector of 36,864 at a density of 1 %.
    size, nnz, share = 36_864, 368, 0.0034
    volumes = {8: [], 16: []}
    for seed in range(20):
        values = largest("laplace", nnz, seed)
        vector = SparseVector(scattered(size, nnz, seed), values, size)
        for of, found in volumes.items():
            packet = Split(Rice(), Tiers(of)).encode(vector)
            found.append(packet.body.numel() / (4 * size))
    header = HEADER.size / (4 * size)  # which the published systems do not count
    assert sum(volumes[8]) / 20 < share
    assert max(volumes[8]) - header < share
    assert max(volumes[16]) < share


@unhurried
@given(st.lists(WHOLE, max_size=60).map(torch.tensor), st.sampled_from(SHARES))
def test_the_error_of_whole_numbers_is_exact(values, share):
    read = round_trip(Tiers(share), values.float())
    left = values.float() - read
    assert torch.equal(left.double(), values.double() - read.double())


def test_the_largest_of_all_does_not_become_infinite():
    read = round_trip(Tiers(), torch.tensor([LARGEST, -LARGEST]))
    assert read.isfinite().all()
    assert (read.abs() > 0.99 * LARGEST).all()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", LISTS)
def test_backends_agree(name, share):
    codec = Tiers(share)
    for values in (LISTS[name](301), LISTS[name](301)[::3]):
        section = codec.encode(values)
        read = codec.decode(section, len(values))
        with by_reference():
            assert codec.encode(values).tolist() == section.tolist()
            assert to_bits(codec.decode(section, len(values))) == to_bits(read)


@pytest.mark.parametrize("share", [-1, 0, 1, 17])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ConfigError, match=rf"share is {share}: one value in 2 to 16"):
        Tiers(share)


@pytest.mark.parametrize(
    "levels",
    [(1.0, 0.5), (-1.0, 1.0), (-0.0, 1.0), (1.0, float("inf")), (float("nan"), 2.0)],
    ids=str,
)
def test_impossible_levels_are_refused(levels):
    section = Tiers(2).encode(wave(20))
    for at in (0, 3):
        broken = section.clone()
        broken[:10].view(torch.bfloat16)[at : at + 2] = torch.tensor(levels)
        with pytest.raises(WireError, match="Tiers: levels that are not finite"):
            Tiers(2).decode(broken, 20)


def test_a_sign_of_no_value_is_refused():
    section = Tiers(2).encode(wave(20))
    section[10 + 2] |= 1 << 4
    with pytest.raises(WireError, match="Tiers: bits that are set after the end"):
        Tiers(2).decode(section, 20)


def test_a_tier_of_another_size_is_refused():
    section = Tiers(2).encode(wave(20))
    section[10 + 3] ^= 1  # who is in the second tier
    with pytest.raises(WireError, match=r"a bitmap: (9|11) indices, not 10"):
        Tiers(2).decode(section, 20)


@unhurried
@given(ANY_VALUES, st.sampled_from(SHARES), st.data())
def test_damage_is_refused_or_read(values, share, data):
    check_damage(Tiers(share), data, values)


@pytest.mark.parametrize("share", [2, 4, 8])
def test_golden_bytes(share):
    codec, values = Tiers(share), wave(300)
    today, packet = golden_packet(codec, spread(values), f"tiers/{share}.bin")
    assert today == bytes(packet.body.tolist())
    assert to_bits(golden_values(codec, packet)) == to_bits(round_trip(codec, values))
