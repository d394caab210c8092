"""A reduction that fails loses nothing that was not sent."""

from dataclasses import dataclass, field

import pytest
import torch

from tests.workers import fresh
from thinwire.codecs import Split
from thinwire.codecs.codec import CodecWrapper
from thinwire.collectives import GTopK, SparDL
from thinwire.errors import ConfigError, GroupError
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

SIZE = 5000


class Cut:
    """A group whose exchanges fail from some moment on."""

    def __init__(self, group):
        self._group = group
        self.cut = False

    def __getattr__(self, name):
        return getattr(self._group, name)

    def post_receives(self, bodies):
        """Nothing: what is posted would have to come."""

    def exchange(self, *args, **more):
        if self.cut:
            raise GroupError("cut")
        return self._group.exchange(*args, **more)


def test_what_was_not_sent_is_in_the_residual_again():
    pipeline = Pipeline(SparDL(0.01), Split())

    def body(group):
        cut = Cut(group)
        names = Layout(("used", "unused"), ((SIZE,), (SIZE,)))
        state = pipeline.init(names)
        draws = torch.Generator().manual_seed(group.rank)
        for _ in range(3):
            pipeline.reduce_([torch.randn(2 * SIZE, generator=draws)], cut, state)
        grad = torch.randn(2 * SIZE, generator=draws)
        grad[SIZE:] = 0
        before, cut.cut = state.memory.x.whole() + grad, True
        with pytest.raises(GroupError, match="cut"):
            pipeline.reduce_([grad], cut, state, per_name=True)
        return before, state.memory.x.whole()

    for before, after in simulate(2, body):
        # The one block that was on its way has left; all else is there.
        assert torch.equal(after[SIZE:], before[SIZE:])
        gone = (after != before).sum()
        assert gone <= SIZE * 0.01 + 1
        assert torch.equal(after[after != before], torch.zeros(int(gone)))


@dataclass(frozen=True)
class Refusing(CodecWrapper):
    """A codec that refuses lists with a certain value."""

    codec: Split = field(default_factory=Split)

    def encode(self, vector, **options):
        if bool((vector.values == 1e6).any()):
            raise ConfigError("refused")
        return self.codec.encode(vector, **options)


def _refuse(group, collective):
    """Every rank's gradient is refused after receives were posted; then one is not."""
    pipeline = Pipeline(collective, Refusing())
    for value in (1e6, 3.0):
        state = pipeline.init(Layout.flat(SIZE))
        grad = torch.full((SIZE,), value)
        if value == 1e6:
            with pytest.raises(ConfigError, match="refused"):
                pipeline.reduce_([grad], group, state)
    pipeline.reduce_([grad], group, state)
    return grad.max().item()


COLLECTIVES = [SparDL(0.01), GTopK(0.01)]


@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_simulated_ranks_may_refuse_alike(collective):
    assert simulate(2, lambda group: _refuse(group, collective)) == [3.0] * 2


@pytest.mark.processes
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_a_group_is_usable_after_every_rank_refused(collective):
    outcomes = fresh(2, _refuse, collective)
    assert [each.error for each in outcomes] == [None] * 2
    assert [each.result for each in outcomes] == [3.0] * 2
