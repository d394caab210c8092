"""Spikes in made-up curves of the training loss."""

import math

import pytest
from experiments.adamw.spikes import Spike, spikes, unrecovered

FALLING = [4.0 - 0.01 * step for step in range(200)]  # 2 in the end


def raised(curve, start, stop, factor):
    return [
        loss * factor if start <= step < stop else loss
        for step, loss in enumerate(curve)
    ]


@pytest.mark.parametrize("curve", [[], [1.0], [3.0] * 9, [3.0] * 200, FALLING])
def test_without_a_rise_there_is_no_spike(curve):
    assert spikes(curve) == []
    assert unrecovered(curve) is None


def test_a_rise_of_less_than_a_tenth_is_none():
    assert spikes(raised(FALLING, 100, 200, 1.07)) == []


def test_a_short_spike_recovers():
    (spike,) = spikes(raised(FALLING, 100, 120, 1.5))
    assert spike.recovered
    assert 101 < spike.step < 105  # when enough of ten steps are high
    assert 15 < spike.length < 30
    assert unrecovered(raised(FALLING, 100, 120, 1.5)) is None


def test_a_long_spike_is_not_recovered_from():
    found = unrecovered(raised(FALLING, 60, 150, 1.6))
    assert found is not None
    assert found.length > 50
    assert found.height > 1.3


def test_a_run_that_stays_up_is_not_recovered():
    curve = FALLING + [3.5] * 60
    (spike,) = spikes(curve)
    assert (spike.recovered, spike.step + spike.length) == (False, len(curve) + 1)


def test_a_rise_at_the_very_end_is_open():
    (spike,) = spikes(FALLING + [9.0] * 20)
    assert spike.recovered


def test_what_is_no_number_is_a_spike():
    found = unrecovered(FALLING + [math.nan] * 60)
    assert found == Spike(201, 60, math.inf)


def test_several_spikes_are_counted():
    curve = raised(raised(FALLING, 60, 70, 2.0), 130, 140, 2.0)
    assert [spike.recovered for spike in spikes(curve)] == [True, True]
