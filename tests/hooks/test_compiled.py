"""torch.compile around DDP, and DDP around a compiled module."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
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
