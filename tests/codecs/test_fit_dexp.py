"""Fit-DExp: what it recovers, what it does not change, and damaged sections."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.codecs.deepreduce_inputs import (
    descending,
    forty_of_1000,
    largest,
    octets,
    relative_error,
    verdict,
)
from tests.strategies import ANY, unhurried
from thinwire.codecs import FitDExp, Int32, Split
from thinwire.errors import WireError
from thinwire.kernels.reference import dexp
from thinwire.wire import Packet

GOLDEN = Path(__file__).parents[1] / "golden" / "fit_dexp" / "forty_of_1000.bin"

VALUES = st.one_of(
    st.lists(ANY, max_size=80),
    st.lists(st.integers(-3, 3).map(float), max_size=80),
    st.lists(st.floats(0.5, 2, width=32), max_size=80),
).map(descending)


def read_back(values):
    return FitDExp().decode(FitDExp().encode(values), len(values))


def test_exponentials_are_recovered():
    x = np.arange(1, 401)
    y = 0.2 * np.exp(0.004 * x) + 0.001 * np.exp(0.015 * x)
    p, q, a, c = dexp.fit(y.astype(np.float32))
    assert (math.log(p), math.log(q)) == pytest.approx((0.015, 0.004), rel=1e-4)
    # The worked example counts from 1, a section from 0.
    assert (a / p, c / q) == pytest.approx((0.001, 0.2), rel=2e-4)
    values = torch.from_numpy(y[::-1].astype(np.float32).copy())
    assert FitDExp().encode(values).numel() == 8 + 32
    assert relative_error(read_back(values), values) < 2e-6
    assert relative_error(read_back(-values.flip(0)), -values.flip(0)) < 2e-6


@pytest.mark.parametrize("argument", [0.0, 1e-9, -0.01, 0.3, -5.0, 80.0, -700.0])
def test_the_series_is_the_exponential(argument):
    found = dexp.exp(argument)
    assert found == pytest.approx(math.exp(argument), rel=1e-13)


def test_a_sine_is_sent_unchanged():
    sine = torch.sin(torch.linspace(0.1, 3.0, 100))
    section = FitDExp().encode(sine)
    assert section.numel() == 8 + 8 + 400
    assert torch.equal(FitDExp().decode(section, 100), sine)


def test_a_fit_that_misses_half_is_not_used():
    outlier = torch.tensor([1e6] + [1.0] * 3 + [1e-3] * 3000)
    section = FitDExp().encode(outlier)
    assert relative_error(FitDExp().decode(section, len(outlier)), outlier) < 0.5


@pytest.mark.parametrize(
    ("kind", "nnz", "error"),
    [
        ("gaussian", 368, 0.016),
        ("laplace", 368, 0.028),
        ("student", 368, 0.17),
        ("gaussian", 10_000, 0.014),
        ("laplace", 10_000, 0.03),
        ("student", 10_000, 0.25),
    ],
)
def test_the_error_of_the_largest_values_is_small(kind, nnz, error):
    errors = []
    for seed in range(3):
        values = largest(kind, nnz, seed)
        section = FitDExp().encode(values)
        assert section.numel() == 72 or kind == "student"
        errors.append(relative_error(FitDExp().decode(section, nnz), values))
    assert sum(errors) / 3 < error


def test_fewer_than_eight_values_of_a_sign_are_sent_unchanged():
    values = descending([1.0, 7.0, 3e38, -1e-40, -2.0, 0.0, 5.0])
    assert torch.equal(read_back(values), values)
    assert FitDExp().encode(values).numel() == 8 + (8 + 16) + (8 + 8)


def zipf(power, count=50):
    """Values whose fit, where it is near enough, may dip below zero."""
    return torch.arange(1, count + 1).double().pow(-power).float()


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_no_value_changes_its_sign(power):
    for values in (zipf(power), -zipf(power).flip(0)):
        for backend in (cpu, reference):
            read = backend.decode_dexp(backend.encode_dexp(values), len(values))
            assert (read * values >= 0).all()


@unhurried
@given(VALUES)
def test_no_value_of_any_changes_its_sign(values):
    assert not (read_back(values) * values.sign() < 0).any()


def test_nonfinite_values_are_not_delivered():
    values = descending([float("inf"), float("nan"), 2.0, -1.0, float("-inf")])
    assert read_back(values).tolist() == [0.0, 0.0, 2.0, -1.0, 0.0]


def test_constant_values_come_back():
    for values in (torch.full((50,), 3.0), torch.full((50,), -3.0), torch.zeros(50)):
        assert relative_error(read_back(values) + 1, values + 1) < 1e-6


@unhurried
@given(VALUES)
def test_fast_kernels_return_the_same_bits(values):
    section = cpu.encode_dexp(values)
    assert torch.equal(section, reference.encode_dexp(values))
    read = cpu.decode_dexp(section, len(values))
    wanted = reference.decode_dexp(section, len(values))
    assert torch.equal(read.view(torch.int32), wanted.view(torch.int32))
    assert read.dtype == torch.float32


def test_fast_kernels_return_the_same_bits_of_larger_lists():
    for kind in ("gaussian", "laplace", "student"):
        values = largest(kind, 5000, 3)
        section = cpu.encode_dexp(values)
        assert torch.equal(section, reference.encode_dexp(values))
        read = cpu.decode_dexp(section, 5000)
        assert torch.equal(read, reference.decode_dexp(section, 5000))


@unhurried
@given(VALUES)
def test_the_error_is_at_most_half_of_what_is_sent(values):
    read = read_back(values)
    finite = torch.where(values.isfinite(), values, 0.0).double()
    assert read.isfinite().all()
    assert (read.double() - finite).norm() <= 0.5 * finite.norm() * (1 + 1e-6)


@unhurried
@given(VALUES)
def test_a_section_is_little_longer_than_its_values(values):
    assert FitDExp().encode(values).numel() <= 4 * len(values) + 8 + 2 * 12


def test_values_that_do_not_descend_are_refused():
    for backend in (cpu, reference):
        with pytest.raises(ValueError, match="do not descend"):
            backend.encode_dexp(torch.tensor([-1.0, 1.0]))


def test_golden_bytes():
    codec = Split(Int32(), FitDExp(), checksum=False)
    body = GOLDEN.read_bytes()
    assert bytes(codec.encode(forty_of_1000()).body.tolist()) == body
    read = codec.decode(Packet.parse(octets(body)), 1000, 40)
    assert read.indices.tolist() == forty_of_1000().indices.tolist()
    assert relative_error(read.values, forty_of_1000().values) < 0.05
    ends = [1.0482938289642334, -1.1571767330169678, 28.149534225463867, 0.0]
    assert read.values[[0, 1, 38, 39]].tolist() == ends


def curve(*numbers):
    return struct.pack("<4d", *numbers)


HALVES = curve(0.5, 0.5, 1.0, 0.0)
RAW = bytes(8) + struct.pack("<3f", 3, 2, 1) + bytes(4)


def section_of(positive, negative, *parts):
    return octets(struct.pack("<II", positive, negative) + b"".join(parts))


def test_sections_are_read_as_documented():
    section = section_of(2, 3, HALVES, HALVES)
    read = FitDExp().decode(section, 6)
    assert read.tolist() == [0.5, 1.0, 0.0, -1.0, -0.5, -0.25]
    section = section_of(3, 1, RAW, HALVES)
    assert FitDExp().decode(section, 4).tolist() == [3, 2, 1, -1]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (octets(b""), "0 bytes where 8 are read"),
        (section_of(3, 1, HALVES, HALVES), "3 positive, 1 negative values of 3"),
        (section_of(2**32 - 1, 1), "4294967295 positive"),
        (section_of(3, 0), "8 bytes where 24 are read|8 bytes where 28 are read"),
        (section_of(3, 0, HALVES[:-8]), "32 bytes where 40 are read"),
        (section_of(2, 1, HALVES), "40 bytes where"),
        (section_of(3, 0, RAW[:16]), "24 bytes where 28 are read"),
        (section_of(3, 0, RAW[:-4] + b"\1\0\0\0"), "zeros fill up a word"),
        (section_of(3, 0, HALVES, bytes(8)), "48 bytes where 40 are expected"),
        (section_of(0, 0, bytes(8)), "16 bytes where 8 are expected"),
        (section_of(3, 0, curve(1e300, 0.5, 1.0, 1.0)), "not finite"),
        (section_of(3, 0, curve(0.5, 0.5, math.nan, 1.0)), "not finite"),
        (section_of(3, 0, curve(math.inf, 0.5, 1.0, 1.0)), "inf and 0.5 that are not"),
        (section_of(3, 0, curve(-0.0, 0.5, 1.0, 1.0)), "-0.0 and 0.5 that are not"),
        (section_of(3, 0, curve(-0.5, 0.5, 0.0, 1.0)), "-0.5 and 0.5 that are not"),
        (section_of(3, 0, curve(0.5, 0.0, 1.0, 1.0)), "0.5 and 0.0 that are not"),
        (section_of(0, 3, curve(0.5, -1.0, 1.0, 0.0)), "0.5 and -1.0 that are not"),
        (section_of(3, 0, curve(0.5, math.nan, 1.0, 0.0)), "0.5 and nan that are not"),
        (section_of(3, 0, curve(0.5, 0.25, -1.0, 0.0)), "a magnitude below 0"),
        (section_of(0, 3, curve(0.5, 0.25, 1.0, -3.0)), "a magnitude below 0"),
        (section_of(3, 0, curve(0.5, 0.5, 1e39, 0.0)), "not finite"),
        (section_of(3, 0, bytes(8) + struct.pack("<4f", 1, math.nan, 1, 0)), "finite"),
    ],
)
def test_a_damaged_section_is_refused(section, said):
    with pytest.raises(WireError, match=f"Fit-DExp: .*({said})"):
        FitDExp().decode(section, 3)
    with pytest.raises(ValueError, match=said):
        reference.decode_dexp(section, 3)


@unhurried
@given(VALUES, st.data())
def test_a_changed_section_is_refused_or_read_as_finite_values(values, data):
    section = FitDExp().encode(values)
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    section = section[: data.draw(st.sampled_from([len(section), at]))]
    read = verdict(FitDExp().decode, section, len(values))
    wanted = verdict(reference.decode_dexp, section, len(values))
    assert (read is None) == (wanted is None)
    if read is not None:
        assert torch.equal(read, wanted)
        assert read.isfinite().all()


@unhurried
@given(st.binary(max_size=90), st.integers(0, 20))
def test_random_bytes_are_refused_or_read_as_finite_values(data, nnz):
    read = verdict(FitDExp().decode, octets(data), nnz)
    assert read is None or (len(read) == nnz and bool(read.isfinite().all()))
