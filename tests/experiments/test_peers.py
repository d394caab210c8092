"""What peers compute, what they remember, and what they are counted for."""

import pytest
import torch
from experiments.peers.base import Rows
from experiments.peers.chunks import CosineChunks, cosines
from experiments.peers.demo import DeMo
from experiments.peers.onebit_adam import OneBitAdam
from experiments.peers.sparse_loco import SparseLoCo
from experiments.train.reduction import Reduction
from experiments.train.run import Limits, run_virtual
from experiments.train.spec import Spec
from torch import nn

from tests.experiments.tiny_gpt import RECIPE, TASK
from tests.experiments.toy_task import Toy
from thinwire.errors import ConfigError
from thinwire.layout import Layout

CPU = torch.device("cpu")
LAYOUT = Layout(("w", "b", "c"), ((8, 12), (6,), (4, 2, 3)))

PEERS = {
    "demo": Reduction(method="demo", options={"keep": 4}),
    "sparse-loco": Reduction(method="sparse-loco", options={"every": 4}),
    "1 bit": Reduction(method="1-bit-adam", options={"dense": 4}),
    "top k": Reduction(method="1-bit-adam", options={"dense": 4, "density": 0.1}),
}


def rows_of(ranks=3, *, size=LAYOUT.size):
    return torch.randn(ranks, size, generator=torch.Generator().manual_seed(0))


def spec_of(reduction, **more):
    return Spec(task="tiny", reduction=reduction, workers=3, **more)


@pytest.mark.parametrize("name", PEERS)
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path, name):
    spec, path = spec_of(PEERS[name]), tmp_path / "run.pt"
    whole = run_virtual(TASK, spec, device=CPU)
    limits = Limits(checkpoint=path, stop_after=1)
    assert run_virtual(TASK, spec, device=CPU, limits=limits) is None
    resumed = run_virtual(TASK, spec, device=CPU, limits=Limits(checkpoint=path))
    for figure in ("checksum", "step_loss", "metric", "bytes_per_step"):
        assert resumed["history"][figure] == whole["history"][figure], figure
    assert all(0 < loss < 4 for loss in whole["history"]["loss"])


def test_cosines_are_orthonormal_and_chunks_come_back():
    basis = cosines(64)
    torch.testing.assert_close(basis @ basis.T, torch.eye(64), atol=1e-5, rtol=0)
    rows, back = rows_of(), torch.zeros(LAYOUT.size)
    chunks = CosineChunks(LAYOUT, CPU, most=4)
    found = chunks.transform(rows)
    assert {sides: each.shape for sides, each in found.items()} == {
        (4, 4): (3, 6, 16),
        (1, 3): (3, 2, 3),
        (4, 3): (3, 2, 12),
    }
    chunks.restore_({sides: each[1] for sides, each in found.items()}, back)
    torch.testing.assert_close(back, rows[1], atol=1e-5, rtol=1e-5)


def test_demo_sends_everything_where_it_may():
    rows = rows_of()
    mean = rows.mean(0)
    demo = DeMo(keep=64 * 64).start(Rows(LAYOUT, rows))
    demo.reduce_(rows)
    torch.testing.assert_close(rows[0], mean, atol=1e-5, rtol=1e-5)
    assert demo.norms() == [0.0] * 3


def test_demo_keeps_what_it_did_not_send():
    rows = rows_of(1)
    given = rows[0].clone()
    demo = DeMo(keep=1, decay=1.0).start(Rows(LAYOUT, rows))
    demo.reduce_(rows)
    (kept,) = demo.norms()
    sent, whole = rows[0].norm().item(), given.norm().item()
    assert kept**2 + sent**2 == pytest.approx(whole**2, rel=1e-4)
    # Three chunks, one entry of 28 bits each: 11 bytes, to nobody.
    assert demo.cost().nbytes == 0


def test_demo_averages_over_those_that_sent():
    rows = torch.zeros(2, 4)
    rows[0, :] = 1.0  # the first coefficient alone
    rows[1, :] = torch.tensor([3.0, -3.0, 3.0, -3.0])
    demo = DeMo(keep=1).start(Rows(Layout.flat(4), rows))
    demo.reduce_(rows)
    basis = cosines(4)
    own = torch.tensor([3.0, -3.0, 3.0, -3.0]) @ basis.T
    expected = torch.ones(4) + own.max() * basis[own.argmax()]
    torch.testing.assert_close(rows[0], expected, atol=1e-5, rtol=1e-5)


def test_one_bit_is_dense_first_and_then_keeps_the_difference():
    rows = rows_of()
    method = OneBitAdam(dense=1, beta=0.5).start(Rows(LAYOUT, rows))
    mean = rows.mean(0)
    method.reduce_(rows)
    torch.testing.assert_close(rows[0], mean)
    assert method.cost().nbytes == -(-2 * 4 * LAYOUT.size * 2 // 3)
    given = rows_of()
    rows.copy_(given)
    method.reduce_(rows)
    assert [len(v.unique()) for v in LAYOUT.views(rows[0].abs()).values()] == [1] * 3
    state = method.state_dict()
    momentum = 0.5 * (0.5 * mean) + 0.5 * given.mean(0)
    left = state["error"].mean(0) + state["mean_error"]
    torch.testing.assert_close(rows[0] + left, momentum, atol=1e-5, rtol=1e-5)
    assert method.cost().nbytes < LAYOUT.size


def test_the_variance_stands_still():
    model = nn.Linear(2, 2, bias=False)
    rows = Rows(Layout.flat(4), torch.zeros(1, 4))
    optimizer = OneBitAdam(dense=1).start(rows).optimizer(RECIPE, model)
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    variance = optimizer.state[model.weight]["variance"].clone()
    model.weight.grad = torch.full((2, 2), 9.0)
    optimizer.step()
    assert torch.equal(optimizer.state[model.weight]["variance"], variance)
    assert optimizer.state[model.weight]["momentum"].eq(9.0).all()


def test_workers_meet_after_their_local_steps():
    spec = spec_of(Reduction(method="sparse-loco", options={"every": 6}))
    result = run_virtual(TASK, spec, device=CPU)
    assert result["history"]["rounds_per_step"] == [pytest.approx(2 / 6)] * 2
    entries = -(-result["parameters"] // 4096) * 123
    nbytes = 2 * -(-entries * 28 // 8)
    assert result["history"]["bytes_per_step"][0] == pytest.approx(nbytes / 6)


def test_local_steps_that_send_everything_average_the_workers():
    weights = rows_of()
    rows = Rows(LAYOUT, torch.zeros_like(weights), weights)
    weights[1:] = weights[0]
    method = SparseLoCo(every=1, density=1.0).start(rows)
    model = nn.Module()
    for name, view in LAYOUT.views(weights[0].clone()).items():
        model.register_parameter(name, nn.Parameter(view))
    optimizer = method.optimizer(RECIPE, model)
    moved = rows_of() + torch.arange(3)[:, None]
    with torch.no_grad():
        weights.copy_(moved)
    optimizer.param_groups[0]["lr"] = 0.0
    method.reduce_(rows.gradients)
    optimizer.step()
    for row in weights:
        torch.testing.assert_close(row, moved.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.b.detach(), moved.mean(0)[96:102])
    assert method.norms() == [0.0] * 3


@pytest.mark.parametrize(
    ("reduction", "message"),
    [
        (Reduction(method="demo", options={"kep": 1}), "kep"),
        (Reduction(method="demo", options={"keep": 0}), "keep=0"),
        (Reduction(method="1-bit-adam", options={"dense": 0}), "dense is 0"),
        (Reduction(method="sparse-loco", options={"density": 2.0}), "density"),
        (Reduction(method="sparse-loco", codec="raw"), "sparse-loco knows no codec"),
    ],
)
def test_bad_settings_are_named(reduction, message):
    with pytest.raises(ConfigError, match=message):
        reduction.reducer(RECIPE, 4, 0)


def test_local_steps_refuse_what_they_cannot_keep_apart():
    spec = spec_of(PEERS["sparse-loco"], recipe={"clip": None})
    with pytest.raises(ConfigError, match="buffers"):
        run_virtual(Toy(), spec, device=CPU)
    with pytest.raises(ConfigError, match="clip"):
        run_virtual(
            TASK, spec_of(PEERS["sparse-loco"], recipe={"clip": 1.0}), device=CPU
        )
