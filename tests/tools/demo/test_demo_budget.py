"""The demo: its time budget, and the comparison of its runs."""

import time

import pytest

from thinwire.errors import ConfigError
from thinwire.tools.demo.loop import Clock, Limits, Run
from thinwire.tools.demo.runs import Result, Row, Settings, _share

SETTINGS = Settings(("dense", "bf16", "topk"), workers=4, seconds=60)


def row(steps: int, *, in_time: bool = True) -> Row:
    losses = tuple(float(100 - step) for step in range(steps))
    return Row("topk", steps, losses, 5.0, 2.0, 100.0, 0.1, in_time=in_time)


def test_the_first_method_decides_the_steps():
    limits = _share(SETTINGS, time.monotonic() + 60, [])
    assert limits.seconds == pytest.approx(16, abs=0.1)  # 0.8 of a third
    assert limits.most is None


def test_the_others_make_as_many_steps_in_what_is_left():
    dense = Run("dense", (1.0,) * 120, (5.0, 2.0), 1.0, 0.1, 1)
    second = _share(SETTINGS, time.monotonic() + 40, [dense])
    assert second.seconds == pytest.approx(20, abs=0.1)
    assert second.most == 120


def test_time_that_is_over_leaves_the_least():
    assert _share(SETTINGS, time.monotonic() - 5, []) == Limits(0.0)
    assert Limits(0.0).least == 10


def test_a_run_ends_at_its_most_steps():
    clock = Clock(Limits(60.0, most=7))
    assert list(clock.steps()) == list(range(7))
    assert clock.fraction(7) == 1.0


def test_losses_are_compared_at_the_steps_that_all_made():
    result = Result(SETTINGS, 1000, (row(40), row(25, in_time=False)))
    assert result.common_steps == 25
    assert row(40).loss_at(25) == row(25).loss_at(25) == 80.5
    assert row(40).loss_at(3) == 99.0
    assert result.dense_bytes == 6000  # 2 x 4 kB x 3/4


def test_settings_are_checked_at_once():
    with pytest.raises(ConfigError, match="unknown method 'zip'"):
        Settings(("dense", "zip"))
