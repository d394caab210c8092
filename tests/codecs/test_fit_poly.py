"""Fit-Poly: exact polynomials, approximations, and damaged sections."""

import struct
from pathlib import Path

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
from thinwire.codecs import FitPoly, Int32, Split
from thinwire.errors import ConfigError, WireError
from thinwire.wire import Packet

GOLDEN = Path(__file__).parents[1] / "golden" / "fit_poly" / "forty_of_1000.bin"

VALUES = st.one_of(
    st.lists(ANY, max_size=120),
    st.lists(st.integers(-3, 3).map(float), max_size=120),
    st.lists(st.floats(0.5, 2, width=32), max_size=120),
).map(descending)


def read_back(values, codec=None):
    codec = codec or FitPoly()
    return codec.decode(codec.encode(values), len(values))


def pieces_of(section):
    """Lengths and numbers of coefficients."""
    data = bytes(section.tolist())
    (count,) = struct.unpack_from("<I", data)
    lengths = struct.unpack_from(f"<{count}I", data, 4)
    return list(zip(lengths, data[4 + 4 * count :][:count], strict=True))


@pytest.mark.parametrize("degree", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("length", [20, 60, 4000])
def test_polynomials_come_back(degree, length):
    x = torch.linspace(-1, 1, length, dtype=torch.float64)
    y = sum((0.5 - k % 3) * x**k for k in range(degree + 1)) + 9
    # Descending or not, values of one sign that do not stray from a polynomial.
    codec = FitPoly(degree, pieces=1)
    assert relative_error(read_back(y.float(), codec), y) < 1e-6


def test_a_quintic_for_each_sign_comes_back():
    x = torch.linspace(0, 1, 500, dtype=torch.float64)
    y = 1e-3 + (1 - x) ** 5
    values = torch.cat([y, torch.zeros(3), -2e4 * y.flip(0)]).float()
    read = read_back(values, FitPoly(pieces=1))
    assert relative_error(read[:500], values[:500]) < 1e-6
    assert relative_error(read[503:], values[503:]) < 1e-6
    assert read[500:503].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "nnz", "error"),
    [
        ("gaussian", 368, 0.0045),
        ("laplace", 368, 0.008),
        ("student", 368, 0.037),
        ("gaussian", 10_000, 0.0012),
        ("laplace", 10_000, 0.003),
        ("student", 10_000, 0.03),
    ],
)
def test_the_error_of_the_largest_values_is_small(kind, nnz, error):
    errors, bits = [], []
    for seed in range(3):
        values = largest(kind, nnz, seed)
        section = FitPoly().encode(values)
        errors.append(relative_error(FitPoly().decode(section, nnz), values))
        bits.append(8 * section.numel() / nnz)
    assert sum(errors) / 3 < error
    assert max(bits) < (5.2 if nnz == 368 else 0.2)


def test_knots_are_where_values_stray_from_the_chord():
    x = torch.arange(400.0)
    bent = torch.where(x < 37, 100 - 2 * x, 26 - (x - 37) / 100)
    codec = FitPoly(degree=1, pieces=2)
    section = codec.encode(bent)
    assert pieces_of(section) == [(37, 2), (363, 2)]
    assert relative_error(codec.decode(section, 400), bent) < 1e-6


def test_signs_zeros_and_nonfinite_values_are_separate_pieces():
    nan, inf = float("nan"), float("inf")
    some = [nan, inf, *[3.0] * 20, *[2.0, 1.0], 0.0, -0.0, *[-1.0] * 3, -inf]
    values = descending(some)
    section = FitPoly(degree=2).encode(values)
    assert pieces_of(section) == [(2, 0), (22, 3), (2, 0), (3, 255), (1, 0)]
    read = FitPoly(degree=2).decode(section, 30)
    assert read[[0, 1, 24, 25, 29]].tolist() == [0, 0, 0, 0, 0]
    assert read[26:29].tolist() == [-1, -1, -1]
    assert (read[2:24] - values[2:24]).abs().max() < 1.1


def test_small_pieces_are_sent_unchanged():
    values = descending([5.0, 3.0, 0.1, -2.0, -2.5, 1e-40, -3e38])
    assert torch.equal(read_back(values), values)


def test_a_curve_beyond_float32_is_not_drawn():
    values = torch.tensor([3.4e38] * 40 + [1.0] * 40)
    section = FitPoly().encode(values)
    assert read_back(values).isfinite().all()
    assert {count for _, count in pieces_of(section)} <= {6, 255}


def test_a_curve_that_crosses_zero_is_not_drawn():
    # A line through a step: below zero before the step is over.
    values = torch.tensor([8.0] * 10 + [1e-3] * 22)
    for signed in (values, -values.flip(0)):
        for degree in (1, 2, 5):
            codec = FitPoly(degree, pieces=1)
            assert pieces_of(codec.encode(signed)) == [(32, 255)]
            assert torch.equal(read_back(signed, codec), signed)
    lifted = values + 8
    assert pieces_of(FitPoly(1, pieces=1).encode(lifted)) == [(32, 2)]


@unhurried
@given(VALUES, st.integers(0, 6), st.integers(1, 9))
def test_no_value_changes_its_sign(values, degree, pieces):
    read = read_back(values, FitPoly(degree, pieces))
    assert not (read * values.sign() < 0).any()


@unhurried
@given(VALUES, st.integers(0, 6), st.integers(1, 9))
def test_fast_kernels_return_the_same_bits(values, degree, pieces):
    section = cpu.encode_poly(values, degree, pieces)
    assert torch.equal(section, reference.encode_poly(values, degree, pieces))
    read = cpu.decode_poly(section, len(values))
    wanted = reference.decode_poly(section, len(values))
    assert torch.equal(read.view(torch.int32), wanted.view(torch.int32))
    assert read.dtype == torch.float32


def test_fast_kernels_return_the_same_bits_of_larger_lists():
    for kind in ("gaussian", "laplace", "student"):
        values = largest(kind, 5000, 3)
        section = cpu.encode_poly(values, 5, 16)
        assert torch.equal(section, reference.encode_poly(values, 5, 16))
        read = cpu.decode_poly(section, 5000)
        assert torch.equal(read, reference.decode_poly(section, 5000))


@unhurried
@given(VALUES)
def test_the_error_is_never_larger_than_what_is_sent(values):
    read = read_back(values)
    finite = torch.where(values.isfinite(), values, 0.0).double()
    assert read.isfinite().all()
    error = (read.double() - finite).norm()
    assert error <= finite.norm() * (1 + 1e-6) + 1e-38


@unhurried
@given(VALUES)
def test_a_section_is_little_longer_than_its_values(values):
    section = FitPoly().encode(values)
    table = 4 + 5 * len(pieces_of(section))
    assert len(section) <= 4 * len(values) + table + -table % 4


def test_values_that_do_not_descend_are_refused():
    for backend in (cpu, reference):
        with pytest.raises(ValueError, match="do not descend"):
            backend.encode_poly(torch.tensor([-1.0, 1.0]), 5, 8)


def test_indices_travel_in_the_order_of_values():
    vector = forty_of_1000()
    codec = Split(Int32(), FitPoly())
    read = codec.decode(codec.encode(vector), 1000, 40)
    assert read.indices.tolist() == vector.indices.tolist()
    assert relative_error(read.values, vector.values) < 0.03


def test_golden_bytes():
    codec = Split(Int32(), FitPoly(), checksum=False)
    body = GOLDEN.read_bytes()
    assert bytes(codec.encode(forty_of_1000()).body.tolist()) == body
    read = codec.decode(Packet.parse(octets(body)), 1000, 40)
    assert relative_error(read.values, forty_of_1000().values) < 0.03
    ends = [1.0233995914459229, -1.1202157735824585, 28.175216674804688, 0.0]
    assert read.values[[0, 1, 38, 39]].tolist() == ends


def section_of(lengths, counts, data, spare=b""):
    head = struct.pack(f"<I{len(lengths)}I", len(lengths), *lengths) + bytes(counts)
    head += bytes(-len(head) % 4)
    return octets(head + struct.pack(f"<{len(data)}f", *data) + spare)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (octets(b""), "0 pieces in 0 bytes"),
        (octets(bytes([2, 0, 0, 0, 1])), "2 pieces in 5 bytes"),
        (octets(bytes([255] * 8)), "4294967295 pieces in 8 bytes"),
        (section_of([], [], []), "pieces of 0 values, not 3"),
        (section_of([2], [1], [1.0]), "pieces of 2 values, not 3"),
        (section_of([3, 0], [1, 1], [1.0, 1.0]), "a piece of no values"),
        (section_of([3], [17], 17 * [1.0]), "more than 16 coefficients"),
        (section_of([3], [254], [1.0]), "more than 16 coefficients"),
        (section_of([3], [2], [1.0]), "16 bytes where 20 are expected"),
        (section_of([3], [255], [1.0]), "16 bytes where 24 are expected"),
        (section_of([3], [1], [1.0], bytes(8)), "24 bytes where 16 are expected"),
        (section_of([3], [2], [1.0, 1.0], b"\0\0\0\1"), "zeros fill up a word"),
        (section_of([3], [1], [float("nan")]), "not finite"),
        (section_of([3], [2], [3e38, 3e38]), "not finite"),
        (section_of([3], [255], [1.0, float("inf"), 0.0]), "not finite"),
    ],
)
def test_a_damaged_section_is_refused(section, said):
    with pytest.raises(WireError, match=f"Fit-Poly: .*{said}"):
        FitPoly().decode(section, 3)
    with pytest.raises(ValueError, match=said):
        reference.decode_poly(section, 3)


def test_padding_between_the_table_and_the_data_is_zero():
    section = section_of([3], [1], [1.0])
    section[9] = 1
    with pytest.raises(WireError, match="zeros fill up a word"):
        FitPoly().decode(section, 3)


@unhurried
@given(VALUES, st.data())
def test_a_changed_section_is_refused_or_read_as_finite_values(values, data):
    section = FitPoly().encode(values)
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    section = section[: data.draw(st.sampled_from([len(section), at]))]
    read = verdict(FitPoly().decode, section, len(values))
    wanted = verdict(reference.decode_poly, section, len(values))
    assert (read is None) == (wanted is None)
    if read is not None:
        assert torch.equal(read, wanted)
        assert read.isfinite().all()


@unhurried
@given(st.binary(max_size=60), st.integers(0, 20))
def test_random_bytes_are_refused_or_read_as_finite_values(data, nnz):
    read = verdict(FitPoly().decode, octets(data), nnz)
    assert read is None or (len(read) == nnz and bool(read.isfinite().all()))


@pytest.mark.parametrize(
    "options", [{"degree": -1}, {"degree": 16}, {"pieces": 0}, {"pieces": 4097}]
)
def test_impossible_options_of_a_fit_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"{name} is {value}: give"):
        FitPoly(**options)
