"""BFloat16: rounds to nearest; finite values never become infinite."""

import pytest
import torch
from hypothesis import given

from tests.codecs.value_checks import (
    ANY_VALUES,
    LARGEST,
    from_bits,
    golden_packet,
    golden_values,
    round_trip,
    spread,
    to_bits,
)
from tests.strategies import unhurried
from thinwire.codecs import BFloat16
from thinwire.errors import WireError

MOST = torch.finfo(torch.bfloat16).max
FIVE = torch.tensor([1.0, -2.5, 0.0, 3e-39, float("inf"), LARGEST])


@unhurried
@given(ANY_VALUES)
def test_values_come_back_as_the_nearest(values):
    read = round_trip(BFloat16(), values)
    known = values.bfloat16().float()
    known = torch.where(values.isfinite(), known.clamp(-MOST, MOST), known)
    assert torch.equal(read.isnan(), values.isnan())
    assert to_bits(read[~read.isnan()]) == to_bits(known[~known.isnan()])


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F800000),  # a tie, to the even one below
        (0x3F818000, 0x3F820000),  # and above
        (0x3F808001, 0x3F810000),
        (0x00008001, 0x00010000),  # a subnormal
        (0x7F7FFFFF, 0x7F7F0000),  # the largest, which rounds to infinity
        (0x7F800000, 0x7F800000),
        (0x7F800001, 0x7FC00000),  # a NaN whose bits are all cut off
        (0x7FABCDEF, 0x7FEB0000),
    ],
)
@pytest.mark.parametrize("sign", [0, -(2**31)], ids="+-")
def test_ties_and_ends(bits, rounded, sign):
    assert to_bits(round_trip(BFloat16(), from_bits([bits + sign]))) == [rounded + sign]


def test_bfloat16_values_are_kept():
    every = from_bits([top << 16 for top in range(-(2**15), 2**15)])
    kept = every[~every.isnan()]
    assert to_bits(round_trip(BFloat16(), kept)) == to_bits(kept)


@pytest.mark.parametrize(("nnz", "nbytes"), [(1, 0), (1, 1), (3, 5), (1, 16), (0, 8)])
def test_too_few_and_too_many_bytes_are_refused(nnz, nbytes):
    said = f"BFloat16: {nbytes} bytes where {2 * nnz} are expected"
    with pytest.raises(WireError, match=said):
        BFloat16().decode(torch.zeros(nbytes, dtype=torch.uint8), nnz)


def test_golden_bytes():
    today, packet = golden_packet(BFloat16(), spread(FIVE), "bfloat16/six.bin")
    assert today == bytes(packet.body.tolist())
    known = [0x3F800000, 0xC0200000 - 2**32, 0, 0x00210000, 0x7F800000, 0x7F7F0000]
    assert to_bits(golden_values(BFloat16(), packet)) == known
