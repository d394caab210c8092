"""Elias-Fano: worked examples, and the length, which size and nnz determine."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.index_lists import bits_of, both, bound, listed, section_of, uniform
from tests.strategies import unhurried
from thinwire import kernels
from thinwire.codecs import Bitmap, EliasFano
from thinwire.codecs.codec import checked
from thinwire.codecs.elias_fano import low_bits
from thinwire.errors import WireError

FIVE = [0, 5, 8, 9, 14]
LOW, HIGH = "01010", "1001001100010"


def test_five_of_sixteen_by_hand():
    assert low_bits(16, 5) == 1
    section = kernels.encode_elias_fano(listed(FIVE, 16), 16, low=1)
    assert bits_of(section) == (LOW + HIGH).ljust(24, "0")
    read = kernels.decode_elias_fano(section, 16, 5, low=1)
    assert read.tolist() == FIVE


def test_a_bitmap_takes_over_where_it_is_not_larger():
    section = EliasFano().encode(listed(FIVE, 16), 16)
    assert torch.equal(section, Bitmap().encode(listed(FIVE, 16), 16))
    for size in (1, 2, 100, 1000):
        for nnz in range(size + 1):
            low = low_bits(size, nnz)
            nbits = min(size, nnz * (low + 1) + (size >> low))
            assert EliasFano().nbytes(size, nnz) == -(-nbits // 8)


@unhurried
@given(st.integers(0, 2**40), st.data())
def test_no_other_number_of_low_bits_is_smaller_and_none_below_as_small(size, data):
    nnz = data.draw(st.integers(0, min(size, 2**32)))
    nbits = [nnz * (low + 1) + (size >> low) for low in range(42)]
    assert low_bits(size, nnz) == nbits.index(min(nbits))


@pytest.mark.parametrize(("nnz", "above"), [(1500, 0.61), (500, 0.63), (200, 0.67)])
def test_few_bits_above_the_least_possible(nnz, above):
    for step in range(400):
        size = int(10 * nnz * 2 ** (step / 20))
        entry = 8 * EliasFano().nbytes(size, nnz) / nnz
        assert entry < bound(size, nnz) + above, size


@pytest.mark.parametrize("size", [2**24, 10**6])
def test_at_most_0_61_bits_above_the_least_possible(size):
    nnz = size // 10
    while nnz >= 1500:
        entry = 8 * EliasFano().nbytes(size, nnz) / nnz
        assert entry < bound(size, nnz) + 0.61, nnz
        nnz = nnz * 97 // 100


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (LOW + "1001001100000", "4 indices, not 5"),
        (LOW + "11" + HIGH[2:], "6 indices, not 5"),
        ("01100" + HIGH, "do not increase"),
        (LOW + "1001001100001", "do not increase"),
        (LOW + HIGH + "1", "6 indices, not 5"),
        (LOW, "1 bytes where 3 are expected"),
        (LOW + HIGH + "0" * 50, "9 bytes where 3 are expected"),
    ],
)
def test_invalid_sections_are_refused(bits, said):
    section = section_of(bits)
    with pytest.raises(ValueError, match=said):
        kernels.decode_elias_fano(section, 16, 5, low=1)


def test_errors_are_those_of_the_wire():
    section = EliasFano().encode(uniform(1000, 20), 1000)
    with pytest.raises(WireError, match="Elias-Fano: 18 bytes where 19 are expected"):
        EliasFano().decode(section[:-1], 1000, 20)


@pytest.mark.parametrize("high", ["01", "001", "0001"])
def test_an_index_beyond_its_type_is_refused(high):
    # The largest low bits with high bits of 2^30, 2^31 and 3 * 2^30.
    size, low = 2**31 - 1, 30
    section = section_of("1" * low + high)

    def read():
        with checked("these"):
            return kernels.decode_elias_fano(section, size, 1, low=low)

    assert both(read) == ["refused", "refused"]
