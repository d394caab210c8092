"""The hook on a CUDA device: several ranks share it over Gloo, one has it over NCCL."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.hooks.training import batch, make_model, optimizer_of
from tests.workers import pool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def train(group, method, backend, options):
    model = make_model().cuda()
    ranks = list(range(group.size))
    model = DDP(
        model,
        bucket_cap_mb=0.01,
        process_group=dist.new_group(ranks, backend=backend),
    )
    state = None if method is None else thinwire.attach(model, method, **options)
    optimizer = optimizer_of(model)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = model(batch(group.rank, step).cuda()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if state is not None:
        state.check_replicas()
    return losses


@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 2), ("nccl", 1)])
@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize(
    ("method", "whole"),
    [
        ("dense", {}),
        ("bf16", {}),
        ("topk", {"density": 1.0, "codec": "raw"}),
        ("gtopk", {"density": 1.0, "codec": "raw"}),
        ("spardl", {"density": 1.0, "codec": "raw"}),
        ("gs-sgd", {"density": 1.0, "columns": 5000, "candidates": 1}),
        ("union", {"density": 1.0}),
        ("s2", {"density": 1.0}),
        ("cheapest", {"density": 1.0}),
    ],
)
def test_losses_are_plain_ddps(backend, ranks, scope, method, whole):
    options = {"scope": scope, **whole}
    ours = pool(ranks).run(train, method, backend, options)
    ddp = pool(ranks).run(train, None, backend, {})
    for left, right in zip(ours, ddp, strict=True):
        assert left == pytest.approx(right, rel=0.02 if method == "bf16" else 1e-5)


def test_sparse_training_on_the_device():
    for losses in pool(2).run(train, "topk", "gloo", {"density": 0.05}):
        assert losses[-1] < losses[0]


def train_without_waiting(group, backend, options):
    ranks = list(range(group.size))
    model = DDP(
        make_model().cuda(),
        bucket_cap_mb=0.01,
        process_group=dist.new_group(ranks, backend=backend),
    )
    state = thinwire.attach(model, "spardl", density=0.05, **options)
    optimizer = optimizer_of(model)
    for step in range(8):
        optimizer.zero_grad()
        loss = model(batch(group.rank, step).cuda()).square().mean()
        if step >= 6:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.step()
    state.check_replicas()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    ("backend", "ranks", "options"),
    [
        ("gloo", 2, {}),
        ("nccl", 1, {"on_nonfinite": "unchecked"}),
        ("nccl", 1, {"on_nonfinite": "unchecked", "clip": 1e-3}),
    ],
)
def test_backward_waits_for_gloo_alone(backend, ranks, options):
    first, *others = pool(ranks).run(train_without_waiting, backend, options)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
