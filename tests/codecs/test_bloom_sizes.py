"""The size of a Bloom filter: the same on every rank, and the least sufficient."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import unhurried
from thinwire.codecs import Bloom
from thinwire.codecs.bloom import shape_of


@pytest.mark.parametrize(
    ("size", "nnz", "fpr", "bits", "hashes"),
    [
        (16, 5, 0.1, 24, 4),
        (16, 5, 0.2, 17, 3),
        (36_864, 368, None, 5293, 10),
        (36_864, 368, 0.001, 5291, 10),
        (36_864, 368, 0.002, 4761, 9),
        (36_864, 368, 0.02, 2997, 6),
        (262_144, 26_214, 0.01, 251_263, 7),
        (100, 10, 0.5, 15, 1),  # exactly one bit, so one hash
        (100, 10, 0.25, 29, 2),
        (100, 10, 0.24, 30, 3),
        (100, 10, 0.999, 1, 1),
        (100, 100, None, 480, 4),
        (10, 1, 2.0**-40, 58, 40),
        (2**32, 1, None, 51, 36),
        (7, 0, None, 0, 0),
        (0, 0, None, 0, 0),
    ],
)
def test_sizing(size, nnz, fpr, bits, hashes):
    assert shape_of(size, nnz, fpr)[:2] == (bits, hashes)


def test_sizing_does_not_depend_on_the_decimal_context():
    shape_of.cache_clear()
    with localcontext(prec=2):
        rough = shape_of(36_864, 368), Bloom().nbytes(2**24, 167_772)
    shape_of.cache_clear()
    assert rough == (shape_of(36_864, 368), Bloom().nbytes(2**24, 167_772))


@given(st.integers(1, 10**6), st.floats(1e-9, 0.999))
@unhurried
def test_the_number_of_bits_is_the_least_that_suffices(nnz, fpr):
    bits, hashes, _ = shape_of(10**7, nnz, fpr)
    assert 2.0**-hashes <= fpr < 2.0 ** (1 - hashes)
    with localcontext(prec=60):
        wanted = -Decimal(fpr).ln() * nnz / Decimal(2).ln() ** 2
        assert bits - 1 < wanted <= bits
