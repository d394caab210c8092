"""What must hold on all shards of all replicas: finite steps, clipping, replicas."""

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.hooks.sharded.training import (
    SHAPES,
    Recorder,
    attached,
    build,
    gradients_of,
    local,
    locals_of,
    residual_of,
    run,
    sgd,
)
from tests.hooks.training import batch
from tests.workers import pool
from thinwire.errors import ConfigError, ReplicaError

pytestmark = pytest.mark.processes


def spoil(group, shards, victim, name, options):
    """What a NaN in one shard of one replica leaves behind."""
    model, mesh = build(shards)
    recorder = Recorder(model)
    state = attached(model, mesh, "topk", density=0.05, **options)
    overlap = options.get("overlap", True)
    optimizer = thinwire.AdamW(model.parameters(), lr=1e-2, state=state)
    run(model, state, optimizer, range(3), group.rank, overlap=overlap)
    residuals, parameters = residual_of(state), locals_of(model)
    recorder.spoil = name if group.rank == victim else None
    run(model, state, optimizer, [3], group.rank, overlap=overlap)
    recorder.spoil = None
    after = residual_of(state)
    untouched = all(torch.equal(after[n], t) for n, t in residuals.items())
    stayed = all(torch.equal(t, parameters[n]) for n, t in locals_of(model).items())
    found = {n: g for n, g in gradients_of(model).items() if g.numel()}
    everywhere = {
        "nan" if bool(grad.isnan().all()) else "zero" if not grad.any() else "other"
        for grad in found.values()
    }
    run(model, state, optimizer, range(4, 6), group.rank, overlap=overlap)
    state.check_replicas()
    return untouched, stayed, everywhere, state.metrics()["skipped_steps"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "options", "leaves"),
    [
        # The first gradient of the backward pass, and the last one.
        ("last.weight", {}, "nan"),
        ("scale", {"on_nonfinite": "zero"}, "zero"),
        ("scale", {"overlap": False}, "nan"),
        ("first.bias", {"clip": 1.0}, "nan"),
        ("first.bias", {"scope": "model"}, "nan"),
    ],
)
def test_a_bad_shard_of_one_rank_leaves_no_trace(shape, name, options, leaves):
    # The last layer has elements on the first shard only.
    victim = shape[1]
    found = pool(shape[0] * shape[1]).run(spoil, shape[1], victim, name, options)
    assert found == [(True, True, {leaves}, 1.0)] * len(found)


def clipped(group, shards, overlap):
    """The mean of clipped gradients, and what it should be."""
    model, mesh = build(shards)
    recorder = Recorder(model)
    clip = 0.02
    state = attached(model, mesh, "dense", clip=clip, overlap=overlap)
    model(batch(group.rank, 0)).square().mean().backward()
    if not overlap:
        state.reduce()
    square = sum(grad.double().square().sum() for grad in recorder.found.values())
    dist.all_reduce(square, group=mesh["shard"].get_group())
    norm = float(square.sqrt())
    for grad in recorder.found.values():
        grad.mul_(min(1.0, clip / norm))
    replicas = mesh["replicate"].size()
    close = []
    for name, grad in gradients_of(model).items():
        wanted = recorder.found[name]
        if wanted.numel():
            dist.all_reduce(wanted, group=mesh["replicate"].get_group())
            close.append(torch.allclose(grad, wanted / replicas, 1e-4, 1e-7))
    return all(close), norm > clip


@pytest.mark.parametrize("overlap", [True, False])
def test_clipping_takes_the_norm_of_all_shards(overlap):
    assert pool(4).run(clipped, 2, overlap) == [(True, True)] * 4


def drifted(group, before):
    model, mesh = build(2)
    if not before:
        state = attached(model, mesh)
        run(model, state, sgd(model), range(2), group.rank)
        state.check_replicas()
    if group.rank == 3:
        with torch.no_grad():  # a padded shard, which FSDP may have moved
            local(model.middle.weight)[0, 0] += 1.0
    try:
        if before:
            attached(model, mesh)
        else:
            state.check_replicas()
    except ReplicaError as error:
        return str(error)
    return None


@pytest.mark.parametrize("before", [True, False])
def test_replicas_that_differ_are_named_on_every_rank(before):
    for message in pool(4).run(drifted, before):
        assert "'middle.weight', where ranks [3] differ from rank 1" in message


def scaled(group):
    """Scales and steps of a GradScaler, of which one step is not finite."""
    model, mesh = build(2)
    recorder = Recorder(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state = attached(model, mesh, "spardl", density=0.05, grad_scaler=scaler)
    optimizer, scales = sgd(model), []
    for step in range(4):
        optimizer.zero_grad()
        recorder.spoil = "scale" if step == 2 and group.rank == 1 else None
        loss = model(batch(group.rank, step)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    state.check_replicas()
    finite = all(bool(t.isfinite().all()) for t in locals_of(model).values())
    return finite, scales


def test_a_grad_scaler_skips_everywhere():
    wanted = [1024.0, 1024.0, 512.0, 512.0]
    assert pool(4).run(scaled) == [(True, wanted)] * 4


def adamw_beside(group, kind):
    """Whether an optimizer on shards steps as one on plain tensors."""
    model, mesh = build(2)
    state = attached(model, mesh, "topk", density=0.1)
    twins = {n: torch.nn.Parameter(t) for n, t in locals_of(model).items() if t.numel()}
    ours = thinwire.AdamW(
        model.parameters(), lr=1e-2, state=state if kind == "told" else None
    )
    theirs = thinwire.AdamW(twins.values(), lr=1e-2)
    for step in range(6):
        model.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
        for name, grad in gradients_of(model).items():
            if name in twins:
                twins[name].grad = grad
        ours.step()
        theirs.step()
    found = locals_of(model)
    state.check_replicas()
    return all(torch.equal(found[name], twin) for name, twin in twins.items())


@pytest.mark.parametrize("kind", ["told", "looking"])
def test_adamw_updates_shards(kind):
    assert pool(4).run(adamw_beside, kind) == [True] * 4


def calls(group):
    """Messages of calls that the state refuses."""
    model, mesh = build(2)
    found = []
    with attached(model, mesh, "topk") as state:
        try:
            state.reduce()
        except ConfigError as error:
            found.append(str(error))
        state.density = 0.5
    try:
        model(batch(group.rank, 0)).sum().backward()
        found.append("")
    except ConfigError as error:
        found.append(str(error))
    try:
        with attached(build(2)[0], mesh, overlap=False) as state:
            pass
        state.reduce()
    except ConfigError as error:
        found.append(str(error))
    model.zero_grad()
    with attached(model, mesh, "topk", overlap=False, density=0.2) as state:
        run(model, state, sgd(model), range(2), group.rank, overlap=False)
        found.append(str(state.density))
    return found


def test_calls_out_of_place():
    for reduces, after, closed, density in pool(4).run(calls):
        assert "overlap=False" in reduces
        assert "attach to the model again" in after
        assert closed == after
        assert density == "0.2"
