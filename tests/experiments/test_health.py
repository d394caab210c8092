"""Gradient norms: correct, without effects, and absent where unknown."""

import torch
from experiments.train.checkpoint import History
from experiments.train.health import GradientNorms, Gradients
from experiments.train.reduction import Reduction
from experiments.train.run import Limits, run_virtual
from experiments.train.spec import Spec

from tests.experiments.toy_task import Toy

CPU = torch.device("cpu")
SPEC = Spec(task="toy", reduction=Reduction(method="topk", density=0.1), workers=3)


def test_norms_are_those_of_the_last_steps():
    norms = GradientNorms(steps=6)
    assert norms.read() is None
    for step in range(6):
        norms.observe(step, (step + 1) * torch.tensor([[3.0, 4.0], [3.0, -4.0]]))
    # Steps 3 to 6 of the epoch: 4.5 times the first on average.
    assert norms.read() == Gradients(22.5, 13.5)
    norms.observe(0, torch.ones(2, 2))
    assert norms.read() is None


def test_looking_changes_nothing(monkeypatch):
    seen = run_virtual(Toy(), SPEC, device=CPU)
    history = seen["history"]
    pairs = zip(history["gradient_norm"], history["mean_gradient_norm"], strict=True)
    assert [0 < of_mean < own for own, of_mean in pairs] == [True, True]
    monkeypatch.setattr(GradientNorms, "observe", lambda *_: None)
    unseen = run_virtual(Toy(), SPEC, device=CPU)
    assert seen["history"]["checksum"] == unseen["history"]["checksum"]
    assert seen["key"] == unseen["key"]
    assert unseen["history"]["gradient_norm"] == [None, None]


def test_an_older_checkpoint_goes_on(tmp_path):
    path = tmp_path / "run.pt"
    whole = run_virtual(Toy(), SPEC, device=CPU)["history"]
    limits = Limits(checkpoint=path, stop_after=1)
    assert run_virtual(Toy(), SPEC, device=CPU, limits=limits) is None
    held = torch.load(path, weights_only=True)
    for name in ("gradient_norm", "mean_gradient_norm"):
        del held["history"][name]
    torch.save(held, path)
    limits = Limits(checkpoint=path)
    resumed = run_virtual(Toy(), SPEC, device=CPU, limits=limits)["history"]
    assert resumed["checksum"] == whole["checksum"]
    assert resumed["gradient_norm"] == [None, whole["gradient_norm"][1]]


def test_what_is_unknown_is_not_logged():
    history = History(loss=[1.0], metric=[2.0], seconds=[3.0])
    for name in ("bytes_per_step", "busiest_bytes_per_step", "rounds_per_step"):
        getattr(history, name).append(0.0)
    history.residual_norm.append(0.5)
    history.checksum.append(7)
    assert "gradient_norm" not in history.last()
    assert history.last()["metric"] == 2.0


def test_the_loss_of_every_step_is_kept():
    history = run_virtual(Toy(), SPEC, device=CPU)["history"]
    assert len(history["step_loss"]) == 12
    first = sum(history["step_loss"][:6]) / 6
    assert abs(first - history["loss"][0]) < 1e-3
