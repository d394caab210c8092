"""LogQuant: the stated error, and values that are zero or not finite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.value_checks import (
    ANY_VALUES,
    LARGEST,
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
from tests.strategies import WHOLE, unhurried
from thinwire.codecs import LogQuant
from thinwire.errors import ConfigError, WireError

EVERY = range(3, 9)


def codebook(section, bits):
    return section[: 4 << (bits - 1)].view(torch.float32)


def check_values(values, bits):
    codec = LogQuant(bits)
    read = round_trip(codec, values)
    coded = values.isfinite() & (values != 0)
    assert (read[~coded] == 0).all()
    assert torch.equal(read.signbit(), values.signbit())
    if not coded.any():
        return
    magnitudes = values[coded].abs().double()
    unit = max(2.0 ** torch.frexp(magnitudes.max())[1].item() / 2**21, 2.0**-146)
    least, most = magnitudes.min() - unit, magnitudes.max() + unit
    found = read[coded].abs().double()
    assert ((least <= found) & (found <= most)).all()
    assert (found / unit % 1 == 0).all()


def relative_error(values, bits):
    return float((round_trip(LogQuant(bits), values) - values).norm() / values.norm())


@pytest.mark.parametrize("bits", EVERY)
@pytest.mark.parametrize("name", LISTS)
def test_values_come_back_between_the_least_and_the_largest(name, bits):
    for size in SIZES:
        check_values(LISTS[name](size), bits)


@unhurried
@given(ANY_VALUES, st.sampled_from(EVERY))
def test_any_values_come_back_between_the_least_and_the_largest(values, bits):
    check_values(values, bits)


@pytest.mark.parametrize(
    ("draw", "errors"),
    [
        ("gauss", {3: 0.04, 4: 0.022, 5: 0.013, 6: 0.007, 8: 0.002}),
        ("laplace", {3: 0.065, 4: 0.035, 5: 0.02, 6: 0.012, 8: 0.0035}),
        ("t3", {3: 0.25, 4: 0.14, 5: 0.075, 6: 0.04, 8: 0.011}),
    ],
)
def test_the_stated_error_of_the_largest_values(draw, errors):
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(4, 2**20, generator=generator)
    values = {
        "gauss": noise[0],
        "laplace": noise[0] * noise[1] + noise[2] * noise[3],
        "t3": noise[0] / noise[1:].square().mean(0).sqrt(),
    }[draw]
    largest = values[values.abs().topk(2**20 // 100).indices]
    for bits, error in errors.items():
        assert relative_error(largest, bits) <= error


@pytest.mark.parametrize("bits", EVERY)
def test_a_level_for_each_of_few_magnitudes(bits):
    count = 2 ** (bits - 1)
    values = torch.arange(1.0, count + 1).repeat(3) * torch.tensor(1.0)
    values[::2] *= -1
    assert torch.equal(round_trip(LogQuant(bits), values), values)


@pytest.mark.parametrize("bits", EVERY)
def test_zeros_and_nonfinite_values_take_the_lowest_level(bits):
    count = 2 ** (bits - 1) - 1
    values = torch.arange(1.0, count + 1)
    lost = torch.tensor([0.0, float("nan"), float("inf"), -float("inf"), -0.0])
    read = round_trip(LogQuant(bits), torch.cat([values, lost]))
    assert torch.equal(read[:count], values)
    assert (read[count:] == 0).all()


@unhurried
@given(st.lists(WHOLE, max_size=60).map(torch.tensor), st.sampled_from(EVERY))
def test_the_error_of_whole_numbers_is_exact(values, bits):
    read = round_trip(LogQuant(bits), values.float())
    left = values.float() - read
    assert torch.equal(left.double(), values.double() - read.double())


def test_the_largest_of_all_does_not_become_infinite():
    values = torch.tensor([LARGEST, -LARGEST])
    assert round_trip(LogQuant(), values).isfinite().all()
    assert relative_error(values * 2.0**-64, 4) <= 2.0**-20


def test_more_levels_err_less_whatever_the_range():
    values = LISTS["every exponent"](1000)
    errors = [relative_error(values * 2.0**-64, bits) for bits in EVERY]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("bits", [-1, 0, 1, 2, 9, 32])
def test_impossible_bits_are_refused(bits):
    with pytest.raises(ConfigError, match=rf"bits is {bits}: give a value 3 to 8"):
        LogQuant(bits)


@pytest.mark.parametrize("bits", EVERY)
@pytest.mark.parametrize(
    "levels",
    [(1.0, 0.5), (-1.0, 1.0), (-0.0, 1.0), (1.0, float("inf")), (float("nan"), 2.0)],
    ids=str,
)
def test_impossible_levels_are_refused(levels, bits):
    section = LogQuant(bits).encode(wave(20))
    for at in (0, 2 ** (bits - 1) - 2):
        broken = section.clone()
        codebook(broken, bits)[at : at + 2] = torch.tensor(levels)
        with pytest.raises(WireError, match="LogQuant: levels that are not finite"):
            LogQuant(bits).decode(broken, 20)


@unhurried
@given(ANY_VALUES, st.sampled_from(EVERY), st.data())
def test_damage_is_refused_or_read(values, bits, data):
    check_damage(LogQuant(bits), data, values)
    length = LogQuant(bits).nbytes(len(values)) + 8
    assert not accepts(LogQuant(bits), torch.zeros(length).byte(), len(values))


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_golden_bytes(bits):
    codec, values = LogQuant(bits), wave(300)
    today, packet = golden_packet(codec, spread(values), f"log_quant/{bits}.bin")
    assert today == bytes(packet.body.tolist())
    read = golden_values(codec, packet)
    assert to_bits(read) == to_bits(round_trip(codec, values))
    errors = {3: 0.28, 4: 0.13, 8: 0.013}
    assert float((read - values).norm() / values.norm()) <= errors[bits]
