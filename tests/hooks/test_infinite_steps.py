"""Steps that a real GradScaler skips: training is as if they had never been."""

import pytest
import torch

import thinwire
from tests.hooks.training import batch, optimizer_of, residual_of, wrap
from tests.workers import pool

pytestmark = pytest.mark.processes

APPLIED = 8


def train(group, method, scope, scale, growth):
    """Apply some steps, however many are skipped; what is left, and how many were.

    Powers of two: the scale changes no bit of what it is divided out of again.
    """
    model = wrap()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
    state = thinwire.attach(
        model, method, density=0.05, scope=scope, grad_scaler=scaler, timeout=20
    )
    optimizer = optimizer_of(model)
    applied = 0
    while applied < APPLIED:
        optimizer.zero_grad()
        loss = model(batch(group.rank, applied)).square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        # A scaler lowers its scale after a skipped step, and only then.
        applied += scaler.get_scale() >= before
    state.check_replicas()
    saved = state.state_dict()
    entries = saved[f"rank {group.rank} of {group.size}"]
    residuals = {n: r / entries["scale"] for n, r in residual_of(state).items()}
    weights = {n: p.detach().clone() for n, p in model.module.named_parameters()}
    counts = entries["step"], entries["passes"]
    return weights, residuals, counts, state.metrics()["skipped_steps"]


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("method", ["topk", "spardl", "bf16"])
def test_infinite_steps_never_were(method, scope):
    quiet = pool(2).run(train, method, scope, 2.0**10, 10**6)
    # Infinite at first, and again whenever the scale has grown too far.
    jumping = pool(2).run(train, method, scope, 2.0**118, 2)
    for rank in (0, 1):
        weights, residuals, counts, skipped = jumping[rank]
        assert skipped > 6
        assert quiet[rank][3] == 0
        assert counts == quiet[rank][2] == (APPLIED, APPLIED)
        for found, right in ((weights, quiet[rank][0]), (residuals, quiet[rank][1])):
            assert found.keys() == right.keys() != set()
            assert all(torch.equal(found[name], right[name]) for name in right)
