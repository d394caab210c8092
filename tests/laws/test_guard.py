"""A step that is not finite on one rank has no effect on any: every collective."""

from math import inf, nan

import pytest
import torch

from tests.laws.cases import CODECS, COLLECTIVES, FEW_RANKS, ranks_for, reals
from thinwire.feedback import Momentum, Residual
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.guard import LIMIT

SIZE = 1003
BAD = (inf, -inf, nan)


def pipeline_of(name, mode, feedback=Residual):
    return pipeline_with(COLLECTIVES[name], mode, feedback)


def pipeline_with(collective, mode, feedback=Residual):
    codec = CODECS["raw"] if collective.coded else None
    return Pipeline(collective, codec, feedback(), on_nonfinite=mode)


def run(group, pipeline, spoil=lambda *_: None):
    """Means and memories of some steps, each after one that was spoilt."""
    state = pipeline.init(Layout.flat(SIZE))
    seen = []
    for step, bad in enumerate(BAD):
        spoil(group, pipeline, state, bad)
        grad = reals(group.rank, step, SIZE)
        mean = pipeline.reduce_([grad], group, state)
        pipeline.settle(mean, state)
        seen.append((bits(grad), *trace_of(state)))
    return seen


def spoil_at_once(group, pipeline, state, bad):
    """A bad number in this unit: nothing of it is accumulated."""
    before = trace_of(state)
    grad = reals(group.rank, 99, SIZE)
    if group.rank == group.size // 2:
        grad[SIZE - 1 - group.rank] = bad
    assert pipeline.reduce_([grad], group, state) is None
    if pipeline.on_nonfinite == "zero":
        assert torch.count_nonzero(grad) == 0
    else:
        assert grad.isnan().all()
    assert same(trace_of(state), before)


def spoil_late(group, pipeline, state, bad):
    """A gradient is delivered, then a later unit turns out bad: all is undone.

    It is too large for a difference to restore what it was added to.
    """
    del bad
    before = trace_of(state)
    grad = reals(group.rank, 99, SIZE) * 1e12
    state.undoable = True
    assert pipeline.reduce_([grad], group, state, scale=2.0) is not None
    pipeline.undo_(state)
    state.undoable = False
    assert same(trace_of(state), before)


def trace_of(state):
    """Everything that a step may leave."""
    saved = [bits(vector.whole()) for vector in state.memory.saved.values()]
    counters = state.collective_memory.to_dict(), state.step, state.has_residual
    return (*saved, (*counters, state.memory.scale))


def bits(vector):
    return vector.clone().view(torch.int32)


def same(one, other):
    """Whether two traces are equal, to the bit."""
    pairs = zip(one, other, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


@pytest.mark.parametrize("spoil", [spoil_at_once, spoil_late])
@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for name in COLLECTIVES for ranks in ranks_for(name, FEW_RANKS)],
)
def test_a_spoilt_step_leaves_no_trace(name, ranks, spoil):
    feedback = Momentum if ranks in (2, 6) else Residual
    pipeline = pipeline_of(name, "zero" if ranks % 2 else "propagate", feedback)
    calm = simulate(ranks, lambda group: run(group, pipeline))
    struck = simulate(ranks, lambda group: run(group, pipeline, spoil))
    for one, other in zip(calm, struck, strict=True):
        assert all(map(same, one, other))


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
