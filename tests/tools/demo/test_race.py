"""The demo's rules: who may run for how long, and when a loss was reached."""

import pytest

from thinwire.errors import ConfigError
from thinwire.tools.demo import loop, methods
from thinwire.tools.demo.loop import Clock, Limits, Look, Run
from thinwire.tools.demo.race import Settings


def run(method, *losses, seconds=10.0, sent=1e6):
    looks = tuple(
        Look(10 * place, seconds * place / (len(losses) - 1), loss)
        for place, loss in enumerate(losses)
    )
    return Run(method, looks, sent, 1000)


def test_every_method_gets_the_same_time():
    settings = Settings(("dense", "bf16", "spardl"), seconds=20)
    for done in ([], [run("dense", 4.0, 3.0)], [run("dense", 4.0, 3.0)] * 2):
        assert settings.limits(done) == Limits(20)


def test_or_the_steps_that_the_first_one_made_in_a_little_less():
    settings = Settings(("dense", "topk"), seconds=20).with_equal_steps()
    assert settings.limits([]) == Limits(16)
    assert settings.limits([run("dense", 4.0, 3.0, 2.0)]) == Limits(20, most=20)
    alone = Settings(("dense",), seconds=20).with_equal_steps()
    assert alone.limits([]) == Limits(20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": ("dense", "zip")}, "unknown method 'zip'"),
        ({"methods": ("powersgd-0",)}, "unknown method 'powersgd-0'"),
        ({"methods": ()}, "no method"),
        ({"methods": ("dense",), "workers": 0}, "0 workers"),
        ({"methods": ("dense",), "seconds": float("nan")}, "nan seconds"),
    ],
)
def test_settings_are_checked_at_once(given, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**given)


def test_a_loss_is_reached_between_two_looks():
    fast = run("spardl", 4.0, 3.0, 2.0)
    assert fast.seconds_to(3.5) == pytest.approx(2.5)
    assert fast.seconds_to(2.0) == pytest.approx(10.0)
    assert fast.seconds_to(5.0) == 0.0
    assert fast.seconds_to(1.9) is None
    assert (fast.steps, fast.seconds, fast.loss) == (20, 10.0, 2.0)


@pytest.fixture
def time(monkeypatch):
    """A clock that stands until it is moved."""

    class Time:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Time()
    monkeypatch.setattr(loop, "time", made)
    return made


def test_the_clock_stands_still_until_it_is_started(time):
    clock = Clock(Limits(10.0))
    time.now += 7
    clock.start()
    time.now += 3
    clock.stop()
    time.now += 50
    assert clock.seconds == 3.0
    clock.start()
    time.now += 1
    assert clock.seconds == 4.0


def test_a_run_stops_at_the_step_nearest_to_its_time(time):
    clock, looks = Clock(Limits(10.0)), []
    clock.start()
    stop, stride = False, 1
    while not stop:
        time.now += 0.3 * stride
        clock.steps += stride
        stop, look, stride = clock.plan()
        if look:
            looks.append(clock.seconds)
            clock.looked = int(clock.fraction * loop.LOOKS)
    assert clock.seconds == pytest.approx(9.9)
    assert len(looks) == loop.LOOKS
    assert looks[-1] == clock.seconds


def test_a_fast_method_does_not_ask_after_every_step(time):
    clock = Clock(Limits(10.0))
    clock.start()
    time.now += 0.125
    clock.steps += 8
    assert clock.plan() == (False, False, 32)


def test_a_slow_method_makes_the_least_number_of_steps(time):
    clock = Clock(Limits(1.0, least=3))
    clock.start()
    stops = []
    for _ in range(3):
        time.now += 5
        clock.steps += 1
        stop, _, stride = clock.plan()
        stops.append(stop)
        assert stride == 1
    assert stops == [False, False, True]


def test_a_run_of_so_many_steps_ends_there(time):
    clock = Clock(Limits(100.0, most=7))
    clock.start()
    stop, stride = False, 1
    while not stop:
        time.now += 0.01 * stride
        clock.steps += stride
        stop, _, stride = clock.plan()
    assert clock.steps == 7
    assert clock.fraction == 1.0


def test_torchs_methods_are_told_from_ours():
    assert methods.is_of_torch("dense")
    assert methods.is_of_torch("powersgd-4")
    assert not methods.is_of_torch("bf16")
    assert methods.powersgd_rank("powersgd-12") == 12
    assert methods.powersgd_rank("powersgd") is None
