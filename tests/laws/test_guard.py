"""A step that is not finite on one rank has no effect on any: every collective."""

from math import inf, nan

import pytest
import torch

from tests.laws.cases import CODECS, COLLECTIVES, FEW_RANKS, ranks_for, reals
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.guard import LIMIT

SIZE = 1003
BAD = (inf, -inf, nan)


def pipeline_of(name, mode):
    collective = COLLECTIVES[name]
    codec = CODECS["raw"] if collective.coded else None
    return Pipeline(collective, codec, on_nonfinite=mode)


def run(group, pipeline, *, struck=False):
    """Means and memories of some steps, each after one that was spoilt if `struck`."""
    state = pipeline.init(Layout.flat(SIZE))
    seen = []
    for step, bad in enumerate(BAD):
        if struck:
            check_spoilt(group, pipeline, state, bad)
        grad = reals(group.rank, step, SIZE)
        assert pipeline.reduce_([grad], group, state) is not None
        seen.append((bits(grad), bits(state.memory.x.whole())))
    return seen


def check_spoilt(group, pipeline, state, bad):
    before, step = bits(state.memory.x.whole()), state.step
    grad = reals(group.rank, 99, SIZE)
    if group.rank == group.size // 2:
        grad[SIZE - 1 - group.rank] = bad
    assert pipeline.reduce_([grad], group, state) is None
    if pipeline.on_nonfinite == "zero":
        assert torch.count_nonzero(grad) == 0
    else:
        assert grad.isnan().all()
    assert torch.equal(bits(state.memory.x.whole()), before)
    assert state.step == step


def bits(vector):
    return vector.clone().view(torch.int32)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for name in COLLECTIVES for ranks in ranks_for(name, FEW_RANKS)],
)
def test_a_spoilt_step_leaves_no_trace(name, ranks):
    pipeline = pipeline_of(name, "zero" if ranks % 2 else "propagate")
    calm = simulate(ranks, lambda group: run(group, pipeline))
    struck = simulate(ranks, lambda group: run(group, pipeline, struck=True))
    for one, other in zip(calm, struck, strict=True):
        for (mean, left), (same, kept) in zip(one, other, strict=True):
            assert torch.equal(mean, same)
            assert torch.equal(left, kept)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_numbers_up_to_the_limit_are_no_reason_to_stop(name):
    # Zeros elsewhere: sums must not overflow, the guard must not fear less than that.
    largest = 0.99 * LIMIT / 7

    def body(group):
        grad = torch.zeros(SIZE)
        if group.rank == 0:
            grad[7] = largest
        pipeline = pipeline_of(name, "propagate")
        state = pipeline.init(Layout.flat(SIZE))
        return pipeline.reduce_([grad], group, state), grad[7].item()

    for ranks in ranks_for(name, (1, 2, 4, 6, 7)):
        for mean, written in simulate(ranks, body):
            assert mean is not None
            assert written == pytest.approx(largest / ranks, rel=2.0**-8)


def test_numbers_beyond_the_limit_are_skipped_before_they_overflow():
    def body(group):
        grad = torch.full((SIZE,), 1.01 * LIMIT / group.size)
        pipeline = pipeline_of("topk-1%", "propagate")
        state = pipeline.init(Layout.flat(SIZE))
        return pipeline.reduce_(
            [grad], group, state
        ), state.memory.x.whole().any().item()

    for ranks in (1, 2, 4):
        assert simulate(ranks, body) == [(None, False)] * ranks
