"""Float16: rounds to nearest, also subnormals; finite values stay finite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.value_checks import (
    ANY_VALUES,
    LARGEST,
    golden_packet,
    golden_values,
    round_trip,
    spread,
    to_bits,
)
from tests.strategies import unhurried
from thinwire.codecs import Float16
from thinwire.errors import WireError

MOST = 65504.0
SIX = torch.tensor([1.0, -2.5, 0.0, 3e-7, float("-inf"), LARGEST])
SMALL = st.lists(st.floats(-0.0078125, 0.0078125, width=32), max_size=40).map(
    torch.tensor
)


@unhurried
@given(ANY_VALUES | SMALL)
def test_values_come_back_as_the_nearest(values):
    values = values.float()
    read = round_trip(Float16(), values)
    known = values.half().float()
    known = torch.where(values.isfinite(), known.clamp(-MOST, MOST), known)
    assert torch.equal(read.isnan(), values.isnan())
    assert to_bits(read[~read.isnan()]) == to_bits(known[~known.isnan()])


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1 + 2**-11, 1.0),  # a tie, to the even one below
        (1 + 3 * 2**-11, 1 + 2**-9),  # and above
        (1 + 2**-11 + 2**-20, 1 + 2**-10),
        (65519.0, MOST),
        (65520.0, MOST),  # rounds to infinity
        (1e30, MOST),
        (2**-14, 2**-14),
        (2**-14 - 2**-25, 2**-14),  # between the subnormals and the others
        (3 * 2**-24, 3 * 2**-24),
        (2**-25, 0.0),  # a tie with nothing
        (1.001 * 2**-25, 2**-24),
        (3 * 2**-25, 2**-23),
        (1e-30, 0.0),
        (float("inf"), float("inf")),
    ],
)
@pytest.mark.parametrize("sign", [1, -1], ids="+-")
def test_ties_and_ends(value, rounded, sign):
    read = round_trip(Float16(), torch.tensor([sign * value]))
    assert to_bits(read) == to_bits(torch.tensor([sign * rounded]))


def test_float16_values_are_kept():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    kept = every[~every.isnan()].float()
    assert to_bits(round_trip(Float16(), kept)) == to_bits(kept)


@pytest.mark.parametrize(("nnz", "nbytes"), [(1, 0), (1, 1), (3, 5), (1, 16), (0, 8)])
def test_too_few_and_too_many_bytes_are_refused(nnz, nbytes):
    said = f"Float16: {nbytes} bytes where {2 * nnz} are expected"
    with pytest.raises(WireError, match=said):
        Float16().decode(torch.zeros(nbytes, dtype=torch.uint8), nnz)


def test_golden_bytes():
    today, packet = golden_packet(Float16(), spread(SIX), "float16/six.bin")
    assert today == bytes(packet.body.tolist())
    known = [1.0, -2.5, 0.0, 5 * 2**-24, float("-inf"), MOST]
    assert golden_values(Float16(), packet).tolist() == known
