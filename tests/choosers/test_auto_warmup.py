"""AutoWarmup: a density that falls with the number of the step."""

from math import log

import pytest
import torch

from tests.laws.cases import integers
from thinwire.choosers import Auto, AutoWarmup, BySize
from thinwire.choosers.auto_warmup import AGE, OrDense
from thinwire.codecs import Rice, Split
from thinwire.collectives import (
    BF16,
    AllGather,
    Dense,
    Grade,
    GsSGD,
    SparDL,
)
from thinwire.errors import ConfigError
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

THEN = AllGather(0.01)


@pytest.mark.parametrize(
    ("warmup", "schedule"),
    [
        (AutoWarmup(THEN, age=2.0), [1.0, 1.0, 0.666667, 0.5, 0.4]),
        (AutoWarmup(THEN, age=0.5), [0.5, 0.25, 0.166667]),
        (AutoWarmup(AllGather(0.3), age=1.0), [1.0, 0.5, 0.333333, 0.3, 0.3]),
        (AutoWarmup(AllGather(1.0)), [1.0, 1.0]),
    ],
    ids=str,
)
def test_the_schedule(warmup, schedule):
    assert [warmup.at(step).density for step in range(len(schedule))] == schedule
    assert warmup.at(10**6) == warmup.then


@pytest.mark.parametrize("density", [0.05, 0.01, 0.001])
def test_what_it_delivers_more_than_the_method_alone(density):
    warmup = AutoWarmup(AllGather(density))
    more = sum(warmup.at(step).density - density for step in range(20_000))

    def harmonic(n):
        return sum(1 / i for i in range(1, n + 1))

    stated = AGE * (harmonic(round(AGE / density)) - harmonic(round(AGE)))
    assert more == pytest.approx(stated, rel=1e-4)
    assert stated < AGE * log(1 / density)


@pytest.mark.parametrize(
    ("sparse", "ranks", "codec", "expected"),
    [
        (AllGather(0.5), 2, Split(), Dense()),
        (AllGather(0.4), 2, Split(), AllGather(0.4)),
        (AllGather(0.2), 8, Split(), Dense()),
        (SparDL(0.45), 8, Split(), SparDL(0.45)),
        (SparDL(0.55), 8, Split(), Dense()),
        (SparDL(0.45), 8, Split(Rice()), SparDL(0.45)),
        (SparDL(0.55), 8, Split(Rice()), Dense()),
        (GsSGD(0.05), 4, Split(), Dense()),
        (AllGather(0.1), 1, Split(), Dense()),
    ],
    ids=str,
)
def test_dense_where_it_sends_no_more(sparse, ranks, codec, expected):
    assert OrDense(sparse).cheaper(10_000, ranks, codec) == expected


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dense_steps_give_way_to_lists_and_nothing_is_lost(ranks):
    pipeline = Pipeline(AutoWarmup(AllGather(0.05), age=1.0), Split())

    def body(group):
        state, rows = pipeline.init(Layout.flat(1000)), []
        for step in range(25):
            counted = Counted(group)
            grad = integers(group.rank, step, 1000)
            before = state.memory.x.whole() + grad
            mean = pipeline.reduce_([grad], counted, state)
            pipeline.settle(mean, state)
            after = state.memory.x.whole().clone()
            dense = isinstance(mean, torch.Tensor)
            rows.append((before, group.size * grad, after, dense))
        return rows

    seen = simulate(ranks, body)
    for step in range(25):
        before = sum(rank[step][0] for rank in seen)
        after = sum(rank[step][2] for rank in seen)
        torch.testing.assert_close(before, seen[0][step][1] + after)
    dense = [row[3] for row in seen[0]]
    # Raw lists take 8 bytes an entry from everyone to everyone.
    last = {1: 19, 2: 2, 4: 4}[ranks]
    assert dense == [True] * last + [False] * (25 - last)


def test_its_density_is_that_of_what_comes_then():
    warmup = AutoWarmup(BySize(5, THEN))
    assert warmup.density == 0.01
    later = warmup.with_density(0.1)
    assert later == AutoWarmup(BySize(5, AllGather(0.1)))
    assert later.at(40).density == pytest.approx(AGE / 41, rel=1e-5)
    assert later.at(round(10 * AGE)) == later.then
    assert (warmup.grade, warmup.coded) == (Grade.ROUNDING, True)
    assert warmup.cost(1000, 4, Split()) == THEN.cost(1000, 4, Split())


def test_small_units_are_left_alone():
    warmup = AutoWarmup(BySize(100, THEN))
    layout = Layout.flat(50)
    assert warmup.choose(warmup.init(layout), 50, 0).collective == Dense()
    assert warmup.choose(warmup.init(layout), 500, 39).collective == OrDense(
        AllGather(AGE / 40)
    )


def test_auto_tries_its_candidates_when_the_density_stands():
    quick = Auto(0.25, (AllGather(),), rounds=1, visit=2, recheck=1000)
    pipeline = Pipeline(AutoWarmup(quick, age=1.0), Split())

    def body(group):
        state = pipeline.init(Layout.flat(1000))
        for step in range(12):
            grad = integers(group.rank, step, 1000)
            pipeline.settle(pipeline.reduce_([grad], group, state), state)
        return quick.choice(state.collective_memory)

    assert len(set(simulate(2, body))) == 1
    assert simulate(2, body)[0] is not None


@pytest.mark.parametrize("then", [Dense(), BF16(), BySize(9, BF16())], ids=str)
def test_it_needs_a_density(then):
    with pytest.raises(ConfigError, match="no density to warm up"):
        AutoWarmup(then)


@pytest.mark.parametrize("age", [0.0, -1.0, float("nan")])
def test_no_age_is_refused(age):
    with pytest.raises(ConfigError, match="age is"):
        AutoWarmup(THEN, age=age)
