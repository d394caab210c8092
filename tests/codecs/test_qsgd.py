"""QSGD: a worked example, an independent implementation, and extreme settings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.codecs.value_checks import (
    ANY_VALUES,
    LARGEST,
    LISTS,
    SIZES,
    accepts,
    check_damage,
    from_bits,
    golden_packet,
    golden_values,
    round_trip,
    spread,
    wave,
)
from tests.strategies import unhurried
from thinwire.codecs import QSGD
from thinwire.errors import ConfigError, WireError

STEP = 0x9E3779B97F4A7C15
CODECS = [QSGD(), QSGD(1, 7), QSGD(128, 1), QSGD(32767, 2**32 - 1)]


def parts(codec, values, key=5):
    section = codec.with_key(key).encode(values)
    ends = 4 * -(-len(values) // codec.bucket)
    numbers = section[ends:].view(torch.int8 if codec.levels < 128 else torch.int16)
    return section[:ends].view(torch.float32), numbers


def draw(key, place):
    """SplitMix64, seeded with the scrambled key: its place-th number, from 0 to 1."""
    return mixed(mixed(key) + (place + 1) * STEP) >> 33, 2**31


def mixed(state):
    mask = 2**64 - 1
    state &= mask
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
    return state ^ state >> 31


def test_the_generator_is_splitmix64():
    assert mixed(0) == 0
    assert draw(0, 0)[0] == 0xE220A8397B1DCDAF >> 33


def test_keys_a_step_apart_draw_other_numbers():
    # Seeds s and s + 1 give keys a step apart.
    values = torch.ones(300)
    one, other = (parts(QSGD(), values, key)[1] for key in (7 * STEP, 8 * STEP))
    assert not torch.equal(one[1:], other[:-1])


@pytest.mark.parametrize("key", range(20))
def test_a_worked_example(key):
    values = torch.tensor([3.0, -4.0, 0.0, 12.0])
    norms, numbers = parts(QSGD(), values, key)
    assert norms.tolist() == [13.0]
    for found, known in zip(
        numbers.tolist(), [(29, 30), (-39, -40), (0,), (117, 118)], strict=True
    ):
        assert found in known
    assert ((round_trip(QSGD(), values, key) - values).abs() <= 13 / 127).all()


def test_values_are_right_on_average():
    values = torch.tensor([3.0, -4.0, 0.0, 12.0, 0.01])
    read = sum(round_trip(QSGD(), values, key) for key in range(2000)) / 2000
    # Four standard deviations, each draw being at most half a unit from its mean.
    assert ((read - values).abs() <= 4 * 0.5 * 13 / 127 / math.sqrt(2000)).all()


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_numbers_are_drawn_as_written_down(codec, key):
    values = wave(70)
    norms, numbers = parts(codec, values, key)
    for place, value in enumerate(values.tolist()):
        start = place // codec.bucket * codec.bucket
        squares = 0.0
        for other in values[start : start + codec.bucket].tolist():
            squares += other * other
        norm = float(torch.tensor(math.sqrt(squares)))
        assert float(norms[place // codec.bucket]) == norm
        steps = codec.levels * abs(value) / norm if norm else 0.0
        numerator, denominator = draw(key, place)
        up = numerator / denominator < steps - math.floor(steps)
        known = math.copysign(math.floor(steps) + up, value)
        assert int(numbers[place]) == known


def test_keys_differ():
    values = wave(300)
    assert not torch.equal(parts(QSGD(), values, 1)[1], parts(QSGD(), values, 2)[1])


def check_error(codec, values):
    read = round_trip(codec, values).double()
    assert (read[~values.isfinite()] == 0).all()
    bucket = min(codec.bucket, max(len(values), 1))
    norms, _ = parts(codec, values)
    units = norms.double().repeat_interleave(bucket)[: len(values)] / codec.levels
    error = (read - values.double().where(values.isfinite(), 0.0)).abs()
    # A subnormal result is rounded to what float32 can hold.
    assert (error <= units * (1 + 2**-20) + 2.0**-149).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_values_come_back_within_a_unit(name, codec):
    for size in SIZES:
        check_error(codec, LISTS[name](size))


@unhurried
@given(ANY_VALUES, st.sampled_from(CODECS))
def test_any_values_come_back_within_a_unit(values, codec):
    check_error(codec, values)


def test_a_norm_that_is_too_large_is_cut():
    values = torch.full((512,), 3e38)
    norms, numbers = parts(QSGD(), values)
    assert norms.tolist() == [LARGEST]
    assert int(numbers.max()) <= 127
    assert round_trip(QSGD(), values).isfinite().all()


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 2.0**-149, 0.1, -3.7])
def test_a_value_that_is_its_own_norm_comes_back(value):
    values = torch.tensor([value])
    for codec in CODECS:
        assert torch.equal(round_trip(codec, values), values)


def test_zeros_decode_to_zeros():
    assert round_trip(QSGD(), torch.zeros(600)).tolist() == [0.0] * 600


@pytest.mark.parametrize(("levels", "nbytes"), [(127, 1032), (128, 2056)])
def test_numbers_take_a_byte_up_to_127_levels(levels, nbytes):
    assert QSGD(levels).nbytes(1024) == nbytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levels": 0}, "levels is 0: give 1 to 127"),
        ({"levels": 32768}, "levels is 32768"),
        ({"bucket": 0}, "bucket is 0: give the number of values"),
        ({"bucket": 2**32}, "bucket is 4294967296: give the number of values"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        QSGD(**options)


@pytest.mark.parametrize("bucket", [2**32, 2**61, 2**62, 2**63 - 1, 10**30])
def test_a_bucket_is_no_longer_than_the_list(bucket):
    values = wave(70)
    for backend in (cpu, reference):
        section = backend.encode_qsgd(values, 127, bucket, 5)
        assert torch.equal(section, backend.encode_qsgd(values, 127, 70, 5))
        read = backend.decode_qsgd(section, 70, 127, bucket)
        assert torch.equal(read, backend.decode_qsgd(section, 70, 127, 70))


@pytest.mark.parametrize("bits", [0x7F800000, 0x7FC00000, -(2**31), 0xBF800000 - 2**32])
def test_impossible_norms_are_refused(bits):
    section = torch.cat([from_bits([bits]).view(torch.uint8), torch.zeros(3).byte()])
    with pytest.raises(WireError, match="QSGD: a norm that is negative or not finite"):
        QSGD().decode(section, 3)


@pytest.mark.parametrize(("levels", "number"), [(127, -128), (100, 101), (3, -4)])
def test_more_than_the_norm_is_refused(levels, number):
    section = torch.tensor([0, 0, 128, 63, 1, number & 255], dtype=torch.uint8)
    with pytest.raises(WireError, match=f"QSGD: a value beyond {levels} levels"):
        QSGD(levels).decode(section, 2)


@unhurried
@given(ANY_VALUES, st.sampled_from(CODECS), st.data())
def test_damage_is_refused_or_read(values, codec, data):
    check_damage(codec, data, values)
    length = codec.nbytes(len(values)) + 8
    assert not accepts(codec, torch.zeros(length).byte(), len(values))


def test_golden_bytes():
    values = wave(600)
    _, packet = golden_packet(QSGD(), spread(values), "qsgd/600.bin")
    section = packet.sections[1]
    norms, numbers = section[:8].view(torch.float32), section[8:608].view(torch.int8)
    assert torch.equal(norms, parts(QSGD(), values)[0])
    units = norms.double().repeat_interleave(512)[:600] / 127
    known = (units * numbers.double()).float()
    assert torch.equal(golden_values(QSGD(), packet), known)
    assert ((known - values).abs() <= units).all()
