"""torch.compile around DDP, and DDP around a compiled module."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.hooks.sharded.training import attached, mesh_of, run, sgd
from tests.hooks.training import WIDTH, optimizer_of, residual_of, step_once
from tests.workers import pool

pytestmark = pytest.mark.processes


def train_compiled(group, where, backend, options):
    """Losses, parameters and residuals, by the names that an uncompiled model has."""
    torch._dynamo.reset()  # noqa: SLF001
    torch.manual_seed(0)
    # Several buckets: torch splits the graph at them, and wants the first to be small.
    wide = [each for _ in range(3) for each in (nn.Linear(600, 600), nn.Tanh())]
    module = nn.Sequential(nn.Linear(WIDTH, 600), *wide, nn.Linear(600, 8))
    if where == "module":
        module = torch.compile(module, backend=backend)
    ddp = model = DDP(module, bucket_cap_mb=2)
    if where == "ddp":
        model = torch.compile(ddp, backend=backend)
    state = thinwire.attach(model, "topk", warn=False, **options)
    optimizer = optimizer_of(model)
    losses = [step_once(model, optimizer, group.rank, step) for step in range(6)]
    state.check_replicas()
    parameters = [p.detach().clone() for p in ddp.module.parameters()]
    return losses, parameters, residual_of(state), state.metrics()["bytes_sent"]


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("where", ["ddp", "module"])
def test_compiled_without_optimization_has_the_same_bits(where, scope):
    options = {"scope": scope}
    plain = pool(2).run(train_compiled, None, "eager", options)
    found = pool(2).run(train_compiled, where, "eager", options)
    for (losses, parameters, residual, sent), (ours, theirs, kept, bytes_) in zip(
        plain, found, strict=True
    ):
        assert losses == ours
        assert all(map(torch.equal, parameters, theirs))
        assert residual.keys() == kept.keys()
        assert all(torch.equal(residual[name], kept[name]) for name in residual)
        assert sent == bytes_ > 0


def train_sharded(group, where):
    """Parameters' names, and residuals, of a sharded model that is compiled, or not."""
    torch._dynamo.reset()  # noqa: SLF001
    mesh = mesh_of(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, 8))
    if where == "layer":
        model[0] = torch.compile(model[0], backend="eager")
    if where == "inside":
        model = torch.compile(model, backend="eager")
    model = fully_shard(model, mesh=mesh["shard"])
    if where == "outside":
        model = torch.compile(model, backend="eager")
    state = attached(model, mesh)
    run(model, state, sgd(model), range(3), group.rank)
    state.check_replicas()
    return residual_of(state)


@pytest.mark.parametrize("where", ["layer", "inside", "outside"])
def test_a_sharded_model_that_is_compiled_has_the_same_bits_and_names(where):
    for kept, found in zip(
        pool(2).run(train_sharded, None),
        pool(2).run(train_sharded, where),
        strict=True,
    ):
        assert kept.keys() == found.keys()
        assert all(torch.equal(kept[name], found[name]) for name in kept)
