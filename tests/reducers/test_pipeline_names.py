"""Names of the layout whose gradient is zero on every rank."""

import pytest
import torch

from tests.laws.cases import reals
from tests.reducers.training import (
    SPARSE,
)
from thinwire.codecs import Split
from thinwire.collectives import AllGather
from thinwire.errors import ConfigError
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

NAMES = Layout(("a", "b"), ((4,), (4,)))


def test_a_name_without_gradient_anywhere_rests():
    pipeline = Pipeline(AllGather(0.25), Split())

    def body(group):
        state = pipeline.init(NAMES)
        first = torch.tensor([8.0, 7.0, 1.0, 1.0, 6.0, 5.0, 4.0, 3.0])
        pipeline.reduce_([first], group, state, per_name=True)
        rested = state.memory.x.whole()[4:].clone()
        second = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        pipeline.reduce_([second], group, state, per_name=True)
        assert torch.equal(state.memory.x.whole()[4:], rested)
        return second.tolist(), state.memory.x.whole().tolist()

    # Larger things rest in b, yet a is delivered.
    for mean, left in simulate(3, body):
        assert mean == [0, 0, 2, 2, 0, 0, 0, 0]
        assert left == [0, 0, 0, 0, 6, 5, 4, 3]


def test_a_name_with_gradient_on_one_rank_takes_part_on_all():
    pipeline = Pipeline(AllGather(0.25), Split())

    def body(group):
        state = pipeline.init(NAMES)
        first = torch.tensor([8.0, 7.0, 0.0, 0.0, 6.0, 5.0, 0.0, 0.0])
        pipeline.reduce_([first], group, state, per_name=True)
        second = torch.zeros(8)
        if group.rank == 1:
            second[7] = 9.0
        pipeline.reduce_([second], group, state, per_name=True)
        return second.tolist()

    # Rank 0 sends 6 and 5, rank 1 sends 6 and 9: its 5 waits.
    assert simulate(2, body) == [[0, 0, 0, 0, 6, 2.5, 0, 4.5]] * 2


def test_a_resting_name_moves_with_the_scale():
    def body(group):
        state = SPARSE.init(Layout(("a", "b"), ((10,), (10,))))
        grad = torch.arange(20.0)
        SPARSE.reduce_([grad], group, state, per_name=True)
        held = state.memory.x.whole().clone()
        grad = torch.zeros(20)
        SPARSE.reduce_([grad], group, state, scale=4.0, per_name=True)
        assert torch.equal(state.memory.x.whole(), 4 * held)
        assert torch.count_nonzero(grad) == 0

    simulate(2, body)


def test_rest_does_not_depend_on_what_selection_remembers():
    layout = Layout(("a", "b"), ((3000,), (3000,)))
    pipeline = Pipeline(AllGather(0.01), Split())

    def body(group):
        state = pipeline.init(layout)
        for step in range(3):
            grad = torch.cat([reals(0, step, 3000), 100 + reals(1, step, 3000)])
            pipeline.reduce_([grad], group, state, per_name=True)
        fresh = pipeline.init(layout)
        fresh.memory.x.whole().copy_(state.memory.x.whole())
        means = []
        for each in (state, fresh):
            grad = torch.cat([reals(0, 9, 3000), torch.zeros(3000)])
            means.append(pipeline.reduce_([grad], group, each, per_name=True))
        return [mean.to_dict() for mean in means]

    for known, fresh in simulate(2, body):
        assert known == fresh
        assert max(known) < 3000


def test_a_name_that_is_cut_in_two_is_refused():
    def body(group):
        grad = [torch.ones(3), torch.ones(5)]
        SPARSE.reduce_(grad, group, SPARSE.init(NAMES), per_name=True)

    with pytest.raises(ConfigError, match="middle of a name"):
        simulate(1, body)
