"""A gradient that is not finite is skipped on every rank, without effects."""

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

import thinwire
from tests.hooks.training import (
    SIZES,
    batch,
    given_gradients,
    gradients_of,
    optimizer_of,
    residual_of,
    wrap,
)
from tests.workers import pool

pytestmark = pytest.mark.processes


def poisoned_step(group, options, where, value, at):
    """Some steps of which step `at` has one bad element in `where` on rank 1."""
    model = wrap("given", bucket_cap_mb=0.005)
    state = thinwire.attach(model, "topk", **options)
    report = []
    for step in range(at + 3):
        model.zero_grad()
        gradients = given_gradients(group.rank, step)
        before = residual_of(state)
        if step == at and group.rank == 1:
            gradients[where][7] = value
        model(gradients).backward()
        report.append((gradients, before, gradients_of(model), residual_of(state)))
    return report, state.metrics()["skipped_steps"]


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["first", "third"])
@pytest.mark.parametrize("mode", ["propagate", "zero"])
def test_a_bad_step_conserves_every_sum(scope, value, where, mode):
    # DDP delivers "third" first and "first" last: in bucket scope two buckets have
    # been delivered already when "first" turns out bad, and must be taken back.
    at = 4
    options = {"scope": scope, "on_nonfinite": mode}
    ranks = pool(2).run(poisoned_step, options, where, value, at)
    assert [skipped for _, skipped in ranks] == [1.0, 1.0]
    reports = [report for report, _ in ranks]
    for step in range(at + 3):
        for name in SIZES:
            before = sum(report[step][1][name] for report in reports)
            after = sum(report[step][3][name] for report in reports)
            means = [report[step][2][name] for report in reports]
            if step == at:
                # What had been delivered is remembered, the rest never came in.
                withdrawn = scope == "bucket" and where == "first" != name
                given = sum(report[step][0][name] for report in reports)
                assert torch.equal(before + given if withdrawn else before, after)
                for mean in means:
                    assert mean.isnan().all() if mode == "propagate" else not mean.any()
            else:
                given = sum(report[step][0][name] for report in reports)
                assert torch.equal(before + given, 2 * means[0] + after)


def test_model_scope_leaves_residuals_untouched():
    ranks = pool(2).run(poisoned_step, {"scope": "model"}, "first", float("inf"), 4)
    for report, _ in ranks:
        _, before, _, after = report[4]
        assert all(torch.equal(before[name], after[name]) for name in SIZES)


def scaled_training(group, attached, steps=12, bad=4):
    """GradScaler on one bad batch: was each step applied, at which scale?"""
    # One bucket for PowerSGD: over Gloo its collectives overtake each other otherwise.
    model = wrap(bucket_cap_mb=0.01 if attached else 25)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    if attached:
        state = thinwire.attach(model, "topk", density=0.1, grad_scaler=scaler)
    else:
        hook_state = powersgd.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        model.register_comm_hook(hook_state, powersgd.powerSGD_hook)
    optimizer = optimizer_of(model)
    trace = []
    for step in range(steps):
        optimizer.zero_grad()
        x = batch(group.rank, step)
        if step == bad and group.rank == 1:
            x[0, 0] = float("inf")
        scaler.scale(model(x).square().mean()).backward()
        before = model.module[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        moved = not torch.equal(before, model.module[0].weight)
        trace.append((moved, scaler.get_scale()))
    if attached:
        state.check_replicas()
        assert state.metrics()["skipped_steps"] == 1
    return trace


def test_grad_scaler_skips_one_step_everywhere_and_recovers():
    for trace in pool(2).run(scaled_training, True):
        assert [moved for moved, _ in trace] == [s != 4 for s in range(12)]
        assert {scale for _, scale in trace[4:]} == {512.0}


@pytest.mark.filterwarnings("ignore")
def test_powersgd_never_recovers():
    """The comparison: PyTorch's own hook never takes another step."""
    for trace in pool(2).run(scaled_training, False):
        assert all(moved for moved, _ in trace[:4])
        assert not any(moved for moved, _ in trace[4:])
        assert trace[-1][1] < 1024.0 / 2**6


def changing_scale(group, scales, scope):
    """Parameters after training under a loss scale that changes over time."""
    model = wrap()
    scaler = torch.amp.GradScaler("cpu", init_scale=scales[0], growth_interval=10**6)
    thinwire.attach(model, "topk", density=0.05, grad_scaler=scaler, scope=scope)
    optimizer = optimizer_of(model)
    for step, scale in enumerate(scales):
        scaler.update(new_scale=float(scale)) if step else None
        optimizer.zero_grad()
        scaler.scale(model(batch(group.rank, step)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return {n: p.detach().clone() for n, p in model.module.named_parameters()}


@pytest.mark.parametrize("scope", ["bucket", "model"])
def test_residuals_follow_the_scale(scope):
    constant = pool(2).run(changing_scale, [1024.0] * 8, scope)[0]
    jumping = [1024.0, 1024.0, 512.0, 512.0, 2048.0, 64.0, 64.0, 1024.0]
    changed = pool(2).run(changing_scale, jumping, scope)[0]
    # Powers of two: not close, equal.
    assert all(torch.equal(constant[name], changed[name]) for name in constant)
