"""Int8: errors within half a unit, exact products, no larger magnitudes."""

import math

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
)
from tests.strategies import WHOLE, unhurried
from thinwire.codecs import Int8
from thinwire.errors import WireError


def scales(values):
    section = Int8().encode(values)
    blocks = -(-len(values) // 256)
    return section[: 2 * blocks].view(torch.bfloat16).double()


def check_error(values):
    read = round_trip(Int8(), values).double()
    finite = values.double().where(values.isfinite(), 0.0)
    units = scales(values).repeat_interleave(256)[: len(values)]
    assert (read[~values.isfinite()] == 0).all()
    # Half a unit, and what no number of units can reach.
    known = finite.clamp(-127 * units, 127 * units)
    assert ((read - known).abs() <= units * (0.5 + 2**-17)).all()
    assert (finite.abs() - known.abs() <= LARGEST / 127).all()


@pytest.mark.parametrize("name", LISTS)
def test_values_come_back_within_half_a_unit(name):
    for size in SIZES:
        check_error(LISTS[name](size))


@unhurried
@given(ANY_VALUES)
def test_any_values_come_back_within_half_a_unit(values):
    check_error(values)


@unhurried
@given(st.floats(2.0**-126, LARGEST, width=32))
def test_a_scale_is_little_more_than_needed_and_has_five_bits(peak):
    scale = float(scales(torch.tensor([peak]))[0])
    assert scale <= 2**121
    assert scale == 2**121 or peak <= 127 * scale * (1 + 2**-24)
    # The least scales are multiples of 2^-130.
    assert scale <= peak / 127 + max(peak / 127 * 2**-4, 2**-130)
    mantissa, _ = torch.frexp(torch.tensor(scale))
    assert float(mantissa) * 32 % 1 == 0


@unhurried
@given(st.lists(WHOLE, max_size=300).map(torch.tensor))
def test_the_error_of_whole_numbers_is_exact(values):
    read = round_trip(Int8(), values.float())
    left = values.float() - read
    assert torch.equal(left.double(), values.double() - read.double())


@pytest.mark.parametrize("exponent", range(-149, 129, 3))
def test_the_error_is_that_of_the_card(exponent):
    for share in (0.5, 0.53125, 0.7, 0.999):
        peak = min(math.ldexp(share, exponent), 127 * 2.0**121)
        values = torch.linspace(-1, 1, 256, dtype=torch.float64) * peak
        values = values.float()
        error = (round_trip(Int8(), values).double() - values.double()).abs().max()
        below = 2.0**-131 if peak < 2.0**-119 else 0.0
        assert error <= values.double().abs().max() / 239 + below


def test_whole_numbers_up_to_127_come_back():
    values = torch.arange(-127.0, 128.0)
    assert torch.equal(round_trip(Int8(), values), values)


def test_ties_go_to_even():
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
    assert round_trip(Int8(), values).tolist() == [127, 0, 2, 2, 0, -2]


def test_blocks_do_not_see_each_other():
    values = torch.cat([torch.full((256,), 127.0), torch.full((3,), 127 * 2.0**-40)])
    assert torch.equal(round_trip(Int8(), values), values)


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (LARGEST, 127 * 2.0**121),
        (-LARGEST, -127 * 2.0**121),
        (float("nan"), 0.0),
        (float("-inf"), 0.0),
        (2.0**-149, 0.0),
        (2.0**-130, 2.0**-130),
        (127 * 2.0**-130, 127 * 2.0**-130),
    ],
)
def test_ends(value, known):
    assert round_trip(Int8(), torch.tensor([value])).tolist() == [known]


@pytest.mark.parametrize("scale", [0x7C01, 0x7F80, 0x7FC0, 0x8000, 0xBF80, 0xFFFF])
def test_impossible_scales_are_refused(scale):
    section = torch.tensor([scale & 255, scale >> 8, 1], dtype=torch.uint8)
    with pytest.raises(
        WireError, match=r"Int8: a scale that is not from 0 to 2\*\*121"
    ):
        Int8().decode(section, 1)


def test_the_largest_product_is_finite():
    section = torch.tensor([0x00, 0x7C, 127], dtype=torch.uint8)
    assert Int8().decode(section, 1).tolist() == [127 * 2.0**121]


def test_minus_128_is_refused():
    section = torch.tensor([0x80, 0x3F, 127, 128], dtype=torch.uint8)
    with pytest.raises(WireError, match="Int8: a value of -128 units"):
        Int8().decode(section, 2)


@unhurried
@given(ANY_VALUES, st.data())
def test_damage_is_refused_or_read(values, data):
    check_damage(Int8(), data, values)
    assert not accepts(Int8(), torch.zeros(len(values) + 10).byte(), len(values))


def test_golden_bytes():
    values = LISTS["wave"](300)
    today, packet = golden_packet(Int8(), spread(values), "int8/300.bin")
    assert today == bytes(packet.body.tolist())
    units = scales(values).float().repeat_interleave(256)[:300]
    known = (values / units).round() * units
    assert to_bits(golden_values(Int8(), packet) + 0.0) == to_bits(known + 0.0)
