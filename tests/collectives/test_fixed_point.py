"""Multiples of a power of two: sums never overflow, differences are exact."""

import pytest
import torch

from thinwire.collectives.fixed_point import FixedPoint

PEAKS = (1e-45, 1e-38, 0.7, 1.0, 3.0, 2.0**20, 3e38)


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 1000])
@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize("spare", [0, 2])
def test_the_largest_sum_fits_and_what_is_taken_off_is_exact(ranks, peak, spare):
    point = FixedPoint.of(peak, ranks, spare)
    assert point.holds(peak)
    torch.manual_seed(ranks)
    values = torch.cat([torch.tensor([peak, -peak]), peak * (2 * torch.rand(500) - 1)])
    multiples = point.multiples(values)
    assert multiples.dtype == torch.int32
    assert int(multiples.long().abs().max()) * ranks < 2**31
    rounded = point.value(multiples)
    rest = values - rounded
    assert torch.equal(rest.double(), values.double() - rounded.double())
    assert rest.abs().max() <= 2.0**point.exponent / 2
    if ranks <= 8:
        # The largest come through whole: they have 24 bits, and there is room for more.
        assert torch.equal(rounded[:2], values[:2])


def test_what_it_does_not_hold():
    point = FixedPoint.of(1.0, 4, spare=2)
    assert point.holds(4.0)
    assert not point.holds(8.01)
    assert not point.holds(float("inf"))


def test_nothing_but_zeros():
    point = FixedPoint.of(0.0, 4)
    assert point.value(point.multiples(torch.zeros(3))).tolist() == [0.0] * 3
