"""A reduction that fails loses nothing that was not sent."""

import pytest
import torch

from thinwire.codecs import Split
from thinwire.collectives import SparDL
from thinwire.errors import GroupError
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
