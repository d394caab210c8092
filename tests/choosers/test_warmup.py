"""Warmup: the collective of each step, which depends on the step alone."""

import pytest
import torch

from tests.collectives.reductions import plain, reduce
from tests.laws.cases import integers
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.choosers import BySize, Warmup
from thinwire.codecs import Split
from thinwire.collectives import BF16, AllGather, Dense, Grade
from thinwire.errors import ConfigError
from thinwire.groups import simulate
from thinwire.layout import Layout

THEN = AllGather(0.01)


@pytest.mark.parametrize(
    ("warmup", "schedule"),
    [
        (Warmup(THEN), [0.01, 0.01]),
        (Warmup(THEN, dense=2), [None, None, 0.01, 0.01]),
        (Warmup(THEN, ramp=2), [0.25, 0.05, 0.01, 0.01]),
        (Warmup(THEN, dense=1, ramp=2), [None, 0.25, 0.05, 0.01]),
        (Warmup(THEN, ramp=2, start=1.0), [1.0, 0.1, 0.01]),
        (Warmup(AllGather(0.5), ramp=2), [0.5, 0.5, 0.5]),
        (Warmup(THEN, ramp=3), [0.25, 0.0854988, 0.0292402, 0.01]),
    ],
    ids=str,
)
def test_the_schedule(warmup, schedule):
    assert [warmup.at(step).density for step in range(len(schedule))] == schedule
    assert warmup.at(10**6) == warmup.then
    assert all(
        warmup.at(step) == (Dense() if density is None else AllGather(density))
        for step, density in enumerate(schedule)
    )


@pytest.mark.parametrize("step", range(5))
def test_a_step_is_a_step_of_what_runs_then(step):
    warmup = Warmup(AllGather(0.1), dense=2, ramp=2, start=0.5)
    xs = [integers(rank, step, 20).tolist() for rank in range(3)]
    assert reduce(warmup, xs, step=step) == reduce(warmup.at(step), xs)


@pytest.mark.parametrize("resumed_at", range(1, 6))
def test_a_resumed_run_goes_on_where_it_was(resumed_at):
    warmup = Warmup(AllGather(0.05), dense=2, ramp=2)
    layout = Layout.flat(100)

    def body(group, *, resume):
        x, out = Accumulator(100), torch.empty(100)
        state = warmup.init(layout)
        totals = []
        for step in range(6):
            if resume and step == resumed_at:
                state = warmup.init(layout)
            x.accumulate_(integers(group.rank, step, 100))
            channel = Channel(group, Split(), step=step)
            total = warmup.all_reduce_(x, channel, state, lambda: out)
            totals.append((plain(total), x.whole().tolist()))
        return totals

    straight = simulate(2, lambda group: body(group, resume=False))
    assert simulate(2, lambda group: body(group, resume=True)) == straight


def test_its_density_is_that_of_what_comes_then():
    warmup = Warmup(BySize(5, THEN), dense=1, ramp=2)
    assert warmup.density == 0.01
    assert warmup.with_density(0.1) == Warmup(BySize(5, AllGather(0.1)), 1, 2)
    assert warmup.with_density(0.1).at(1) == BySize(5, AllGather(0.25))
    with pytest.raises(ConfigError, match="density is 0"):
        warmup.with_density(0)


@pytest.mark.parametrize(
    ("warmup", "grade", "coded"),
    [
        (Warmup(THEN, ramp=1), Grade.EXACT, True),
        (Warmup(THEN, dense=1), Grade.ROUNDING, True),
        (Warmup(BF16(), dense=1), Grade.ROUNDING, False),
        (Warmup(Dense()), Grade.ROUNDING, False),
    ],
    ids=str,
)
def test_it_promises_what_every_step_keeps(warmup, grade, coded):
    assert (warmup.grade, warmup.coded) == (grade, coded)


def test_its_card_is_that_of_the_steps_to_come():
    assert Warmup(THEN, 5, 5).cost(1000, 4, Split()) == THEN.cost(1000, 4, Split())


@pytest.mark.parametrize("steps", [{"dense": -1}, {"ramp": -1}])
def test_negative_steps_are_refused(steps):
    with pytest.raises(ConfigError, match="0 or more"):
        Warmup(THEN, **steps)


@pytest.mark.parametrize("start", [0.0, -1.0, 1.5, float("nan")])
def test_a_ramp_from_no_density_is_refused_before_it_starts(start):
    with pytest.raises(ConfigError, match="density is"):
        Warmup(THEN, ramp=3, start=start)


def test_a_ramp_needs_a_density():
    with pytest.raises(ConfigError, match="no density to ramp"):
        Warmup(BF16(), ramp=1)
