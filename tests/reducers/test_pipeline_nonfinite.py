"""Steps that are not finite leave no trace."""

import pytest
import torch

from tests.laws.cases import integers
from tests.reducers.training import (
    BF,
    F16,
    F32,
    SPARSE,
    cut,
    flat,
    train,
)
from thinwire.codecs import Split
from thinwire.collectives import AllGather, Dense, SparDL
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline


@pytest.mark.parametrize("dtype", [F32, BF, F16], ids=str)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("mode", ["propagate", "zero"])
def test_one_bad_value_on_one_rank_makes_the_step_nonfinite_on_all(dtype, bad, mode):
    pipeline = Pipeline(AllGather(0.1), Split(), on_nonfinite=mode)
    pieces = [(12, F32), (8, dtype)]

    def body(group):
        state = pipeline.init(Layout.flat(20))
        pipeline.reduce_(cut(integers(group.rank, 0, 20), pieces), group, state)
        before = state.memory.x.whole().clone()
        grad = cut(integers(group.rank, 1, 20), pieces)
        if group.rank == 2:
            grad[1][3] = bad
        assert pipeline.reduce_(grad, group, state, scale=2.0) is None
        assert torch.equal(
            state.memory.x.whole().view(torch.int32), before.view(torch.int32)
        )
        assert (state.step, state.memory.scale) == (1, 1.0)
        again = cut(integers(group.rank, 2, 20), pieces)
        assert pipeline.reduce_(again, group, state) is not None
        return flat(grad), flat(again), state.memory.x.whole()

    written, after, left = zip(*simulate(3, body), strict=True)
    expect = torch.full((20,), float("nan") if mode == "propagate" else 0.0)
    for one in written:
        assert torch.equal(one.isnan(), expect.isnan())
        assert torch.equal(one.nan_to_num(), expect.nan_to_num())
    # As if the step had never been.
    skipped = train(
        pipeline, 3, lambda r, s: integers(r, 2 * s, 20), pieces=pieces, steps=2
    )
    for rank, diary in enumerate(skipped):
        assert torch.equal(after[rank], diary.written[1])
        assert torch.equal(left[rank], diary.left[1])


def test_unchecked_is_not_checked():
    def body(group):
        counted = Counted(group)
        pipeline = Pipeline(Dense(), on_nonfinite="unchecked")
        state = pipeline.init(Layout.flat(3))
        grad = torch.tensor([1.0, float("inf") if group.rank else 2.0, 3.0])
        mean = pipeline.reduce_([grad], counted, state)
        assert state.step == 1
        assert mean is not None
        assert counted.traffic.cost == pipeline.cost(3, 2) == Dense().cost(3, 2, None)
        return grad.tolist()

    assert simulate(2, body) == [[1.0, float("inf"), 3.0]] * 2


@pytest.mark.parametrize("dtype", [F32, BF, F16], ids=str)
def test_unchecked_infinities_pass_through_and_are_not_remembered(dtype):
    def body(group):
        pipeline = Pipeline(Dense(), on_nonfinite="unchecked")
        state = pipeline.init(Layout.flat(2))
        grad = torch.tensor([1.0, float("inf") if group.rank else 2.0], dtype=dtype)
        pipeline.reduce_([grad], group, state)
        again = torch.tensor([1.0, 2.0], dtype=dtype)
        pipeline.reduce_([again], group, state)
        return grad.tolist(), again.tolist()

    assert simulate(2, body) == [([1.0, float("inf")], [1.0, 2.0])] * 2


@pytest.mark.parametrize("collective", [AllGather(0.5), SparDL(0.5)], ids=str)
def test_unchecked_lists_may_hold_an_infinity(collective):
    def body(group):
        pipeline = Pipeline(collective, Split(), on_nonfinite="unchecked")
        state = pipeline.init(Layout.flat(8))
        grad = torch.ones(8)
        grad[3] = float("inf") if group.rank else 2.0
        pipeline.reduce_([grad], group, state)
        return grad[3].item()

    assert simulate(2, body) == [float("inf")] * 2


@pytest.mark.parametrize("mode", ["propagate", "zero"])
def test_a_mean_beyond_half_precision_leaves_no_trace(mode):
    pipeline = Pipeline(AllGather(0.5), Split(), on_nonfinite=mode)

    def body(group):
        state = pipeline.init(Layout.flat(2))
        for grad in ([60000.0, 48000.0], [0.0, 48000.0]):
            piece = torch.tensor(grad, dtype=F16)
            mean = pipeline.reduce_([piece], group, state)
        assert mean is None
        assert (state.step, state.memory.scale) == (1, 1.0)
        assert state.memory.x.whole().tolist() == [0, 48000]
        smaller = torch.tensor([0.0, 24000.0], dtype=F16)
        assert pipeline.reduce_([smaller], group, state, scale=0.5) is not None
        assert torch.count_nonzero(state.memory.x.whole()) == 0
        return piece.nan_to_num(nan=-1.0).tolist(), smaller.tolist()

    written = [-1, -1] if mode == "propagate" else [0, 0]
    assert simulate(2, body) == [(written, [0, 48000])] * 2


def test_only_what_may_be_undone_is_copied():
    def body(group):
        state = SPARSE.init(Layout.flat(30))
        SPARSE.reduce_([integers(group.rank, 0, 30)], group, state)
        with pytest.raises(ValueError, match="without being undoable"):
            SPARSE.undo_(state)

    simulate(2, body)
