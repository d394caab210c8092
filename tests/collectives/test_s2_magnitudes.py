"""S2 where magnitudes change from step to step."""

from math import inf, nan

import pytest
import torch

from tests.collectives.row_sums import dense_sum, some_rows, sums
from tests.collectives.test_s2 import SIZE, conserved, grads, steps
from thinwire.collectives import S2, UnionReduce
from thinwire.collectives.step_summary import StepSummary
from thinwire.errors import WireError
from thinwire.rows import Rows


def rows_by_step(peaks):
    def rows(rank, step):
        mine = some_rows(rank, step, count=2000, width=4, nnz=50, whole=False)
        return Rows(mine.ids, mine.values * peaks[step], mine.count)

    return rows


@pytest.mark.parametrize("fall", [1.0, 0.3, 0.1, 1e-3, 1e-9, 1e-30, 0.0])
def test_nothing_is_lost_of_what_is_not_remembered_when_magnitudes_fall(fall):
    rows = rows_by_step([1.0, 1.0, fall, fall * fall])
    seen = sums(S2(), 4, rows, steps=4)
    for step, (total, _) in enumerate(seen):
        _, values = dense_sum(4, step, rows)
        assert (total.values - values).abs().max() <= values.abs().max() * 2**-22


def test_a_spike_spoils_no_later_sum_of_rows():
    rows = rows_by_step([1.0, 1e9, 1.0, 1.0])
    for step, (total, _) in enumerate(sums(S2(), 4, rows, steps=4)):
        _, values = dense_sum(4, step, rows)
        assert (total.values - values).norm() <= values.norm() * 2**-20


@pytest.mark.parametrize("density", [0.02, 1.0])
def test_a_step_after_a_spike_delivers(density):
    def grad(rank, step):
        # One in ten, so that there is a table at a density of 1.
        factor = 1e12 if step == 1 else 1.0
        return grads(rank, step, factor=factor) * (torch.arange(SIZE) % 10 == step)

    everyone = steps(S2(density), 2, grad=grad)
    assert all(map(conserved, everyone))
    assert torch.count_nonzero(everyone[2][0].total) >= SIZE * density / 10


@pytest.mark.parametrize("kind", [S2, UnionReduce])
@pytest.mark.parametrize("bad", [nan, inf])
def test_what_is_not_finite_is_gone_after_its_step(kind, bad):
    def grad(rank, step):
        grad = grads(rank, step)
        if rank == 1 and step == 1:
            grad[7] = bad
        return grad

    everyone = steps(kind(0.02), 3, grad=grad)
    assert not everyone[1][0].total.isfinite().all()
    assert all(seen.after.isfinite().all() for seen in everyone[1])
    assert everyone[2][0].total.isfinite().all()


def test_nothing_is_searched_where_nothing_is_stuck(monkeypatch):
    monkeypatch.setattr(torch, "isin", None)
    assert all(map(conserved, steps(S2(0.02, columns=500), 2)))


@pytest.mark.parametrize("wrong", [[1 << 31, 1], [1 << 62, 1], [-1, 1], [0, -1]])
def test_a_summary_that_no_rank_writes_is_refused(wrong):
    with pytest.raises(WireError, match="whose peak has the bits"):
        StepSummary.read(torch.tensor(wrong))
