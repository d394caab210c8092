"""Virtual workers on a device: a graph computes what single launches compute."""

import pytest
import torch
from experiments.train.ranks import Place, Way
from experiments.train.reduction import Reduction
from experiments.train.run import Limits, Spec, run_virtual
from experiments.train.virtual import Virtual

from tests.experiments.tiny_gpt import TASK
from tests.experiments.toy_task import Toy

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def losses(*, capture, reduce_on="device", dropout=0.0, carrying=False):
    task = Toy(dropout=dropout, carrying=carrying)
    reduction = Reduction(method="spardl", density=0.05)
    torch.manual_seed(0)
    workers = Virtual(
        task.model().to(CUDA),
        task.data(CUDA),
        Place(4, way=Way(reduce_on, capture)),
        reducer=reduction.reducer(task.recipe, 4, 0),
        sparse=reduction.rows(),
    )
    optimizer = reduction.optimizer(task.recipe, workers.model)

    def train(workers):
        found = []
        for step in range(12):
            found.append(workers.backward(step // 6, step % 6).item())
            optimizer.step()
        return found, [b.clone() for b in workers.model.buffers()], workers.how

    return workers.run(train)


@pytest.mark.parametrize("carrying", [False, True])
def test_a_graph_computes_what_launches_compute(carrying):
    (eager, buffers, how), (graph, others, other) = (
        losses(capture=capture, carrying=carrying) for capture in (False, True)
    )
    assert "eagerly" in how
    assert "CUDA graph" in other
    assert graph == pytest.approx(eager, rel=1e-3)
    for mine, theirs in zip(buffers, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_dropout_in_a_graph_follows_the_seed():
    first, second = (losses(capture=True, dropout=0.5)[0] for _ in range(2))
    assert first == pytest.approx(second, rel=1e-3)
    assert first != pytest.approx(losses(capture=True)[0], rel=1e-3)


def test_where_it_is_reduced_changes_nothing():
    pytest.importorskip("numba")
    here, there = (losses(capture=True, reduce_on=w)[0] for w in ("cpu", "device"))
    assert here == pytest.approx(there, rel=1e-3)


def test_a_whole_run():
    spec = Spec(task="toy", reduction=Reduction(method="topk", density=0.05), workers=4)
    result = run_virtual(Toy(), spec, device=CUDA)
    assert len(result["history"]["metric"]) == 2


def test_a_resumed_run_draws_the_same_dropout(tmp_path):
    reduction = Reduction(method="topk", density=0.05)
    spec = Spec(task="toy", reduction=reduction, workers=4)
    task, path = Toy(dropout=0.5), tmp_path / "run.pt"
    whole = run_virtual(task, spec, device=CUDA)
    for limits in (Limits(checkpoint=path, stop_after=1), Limits(checkpoint=path)):
        resumed = run_virtual(task, spec, device=CUDA, limits=limits)
    losses = resumed["history"]["loss"]
    assert losses == pytest.approx(whole["history"]["loss"], rel=1e-3)


@pytest.mark.parametrize("method", ["dense", "demo", "sparse-loco", "1-bit-adam"])
def test_a_gpt_learns_in_a_graph_what_it_learns_without(method):
    options = {"every": 3} if method == "sparse-loco" else {}
    spec = Spec(
        task="tiny", reduction=Reduction(method=method, options=options), workers=4
    )
    eager, graph = (
        run_virtual(TASK, spec, device=CUDA, way=Way(capture=capture))["history"]
        for capture in (False, True)
    )
    assert graph["step_loss"] == pytest.approx(eager["step_loss"], rel=5e-2)
