"""Training of sharded models: the reduction is DDP's of the same shards."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel as DDP

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
    sum_over_replicas,
)
from tests.hooks.training import batch
from tests.workers import pool
from thinwire import catalog

pytestmark = pytest.mark.processes


class Shards(nn.Module):
    """A model whose parameters are the shards of another one."""

    def __init__(self, pieces) -> None:
        super().__init__()
        self.names = [name for name, piece in pieces.items() if piece.numel()]
        for number, name in enumerate(self.names):
            parameter = nn.Parameter(torch.zeros_like(pieces[name]))
            self.register_parameter(f"p{number}", parameter)

    def forward(self, gradients):
        given = [gradients[name] for name in self.names]
        pairs = zip(self.parameters(), given, strict=True)
        return sum((parameter * each).sum() for parameter, each in pairs)


def beside_ddp(group, shards, method, steps):
    """Whether DDP of the same shards delivers and keeps the same bits."""
    model, mesh = build(shards)
    state = attached(model, mesh, method, density=0.05, scope="model", overlap=False)
    pieces = locals_of(model)
    twin = DDP(
        Shards({name: pieces[name] for name in residual_of(state)}),  # in its order
        process_group=mesh["replicate"].get_group(),
        bucket_cap_mb=100,
    )
    told = thinwire.attach(twin, method, density=0.05, scope="model", warn=False)
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        twin.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
        given = gradients_of(model)
        state.reduce()
        twin(given).backward()
        wanted = dict(zip(twin.module.names, twin.parameters(), strict=True))
        held = residual_of(state)
        for name, grad in gradients_of(model).items():
            if name in wanted:
                assert torch.equal(grad, wanted[name].grad), (step, name)
        kept = residual_of(told)
        for number, name in enumerate(twin.module.names):
            assert torch.equal(kept[f"p{number}"], held[name]), (step, name)
        optimizer.step()
    state.check_replicas()
    return state.metrics()["kept_density"]


# After two steps DDP has a unit in another order, of which spardl cuts other blocks.
@pytest.mark.parametrize(("method", "steps"), [("topk", 5), ("spardl", 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_ddp_of_the_same_shards(shape, method, steps):
    kept = pool(shape[0] * shape[1]).run(beside_ddp, shape[1], method, steps)
    assert max(kept) < 1


def both_surfaces(group, shards, method, options):
    """Parameters after training in the backward pass, and by `reduce`."""
    found = []
    for overlap in (True, False):
        model, mesh = build(shards)
        with attached(model, mesh, method, overlap=overlap, **options) as state:
            run(model, state, sgd(model), range(5), group.rank, overlap=overlap)
            state.check_replicas()
            found.append((locals_of(model), residual_of(state)))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("spardl", {"density": 0.02}),
        ("gtopk", {"density": 0.02}),
        ("topk", {"density": 0.02, "scope": "model", "clip": 0.5}),
        ("dense", {}),
    ],
)
def test_both_surfaces_give_the_same_bits(shape, method, options):
    for one, other in pool(shape[0] * shape[1]).run(
        both_surfaces, shape[1], method, options
    ):
        for mine, theirs in zip(one, other, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def keep_accounts(group, shards, method, options):
    """The largest relative error of the law, over what was given to each shard."""
    model, mesh = build(shards)
    recorder = Recorder(model)
    state = attached(model, mesh, method, density=0.05, **options)
    delivered = {name: torch.zeros_like(t) for name, t in locals_of(model).items()}
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
        recorder.add()
        for name, grad in gradients_of(model).items():
            delivered[name] += grad
        optimizer.step()
    given = sum_over_replicas(mesh, recorder.total)
    left = sum_over_replicas(mesh, residual_of(state))
    replicas = mesh["replicate"].size()
    errors = [
        (given[n] - replicas * delivered[n].double() - left[n]).abs().max()
        / given[n].abs().max()
        for n in given
        if given[n].numel()
    ]
    before = gradients_of(model)
    state.flush()
    for name, grad in gradients_of(model).items():
        if grad.numel():
            mean = (left[name] / replicas).to(grad)
            torch.testing.assert_close(grad - before[name], mean, rtol=1e-4, atol=1e-6)
    after = [t.abs().max() for t in residual_of(state).values() if t.numel()]
    return (
        float(max(errors)),
        float(max(after)),
        float(max(map(torch.norm, left.values()))),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["topk", "spardl"])
def test_nothing_is_lost(shape, method):
    for error, after, left in pool(shape[0] * shape[1]).run(
        keep_accounts, shape[1], method, {}
    ):
        assert error < 1e-4
        assert after == 0
        assert left > 0


def one_shard(group):
    """replicate(): one shard, which is the whole model, on a (P, 1) mesh."""
    model, mesh = build(1)
    state = attached(model, mesh, "spardl", density=0.02)
    run(model, state, sgd(model), range(4), group.rank)
    state.check_replicas()
    return {n: tuple(t.shape) for n, t in residual_of(state).items()}, state.metrics()


def test_one_shard_on_every_rank():
    for shapes, metrics in pool(3).run(one_shard):
        assert shapes["first.weight"] == (64, 32)
        assert metrics["kept_density"] < 0.1


def copies(group, shards):
    """Whether buckets are copies, and taken before all gradients are there."""
    model, mesh = build(shards)
    state = attached(model, mesh)
    copied, early = [], []
    taken = state._reduction._passes.take  # noqa: SLF001

    def note(bucket):
        storages = {
            local(p.grad).untyped_storage().data_ptr()
            for p in state.parameters.values()
            if p.grad is not None
        }
        early.append(any(state._reduction._missing))  # noqa: SLF001
        copied.append(bucket.buffer.untyped_storage().data_ptr() not in storages)
        return taken(bucket)

    state._reduction._passes.take = note  # noqa: SLF001
    run(model, state, sgd(model), range(3), group.rank)
    return copied, early


def test_gradients_are_not_copied_and_do_not_wait():
    for copied, early in pool(4).run(copies, 2):
        assert not any(copied)
        passes = len(early) // 3
        assert not any(early[:passes])  # the order is not known yet
        assert any(early[passes : 2 * passes])
        assert any(early[2 * passes :])


def every_method(group, overlap):
    """Every method on shards, of which some are empty; the methods that ran."""
    for method in catalog.METHODS:
        model, mesh = build(2)
        steps = 30 if method == "auto" else 3
        with attached(model, mesh, method, overlap=overlap) as state:
            run(model, state, sgd(model), range(steps), group.rank, overlap=overlap)
            state.check_replicas()
            state.flush()
    return len(catalog.METHODS)


@pytest.mark.parametrize("overlap", [True, False])
def test_every_method_runs(overlap):
    assert min(pool(4).run(every_method, overlap)) > 5


def abandoned(group):
    """What is left of a model that nothing refers to any more."""
    model, mesh = build(2)
    state = attached(model, mesh)
    run(model, state, sgd(model), range(2), group.rank)
    left = [weakref.ref(model), weakref.ref(state), weakref.ref(state._engine)]  # noqa: SLF001
    dist.barrier()
    del model, state
    gc.collect()  # the model, which keeps the state
    gc.collect()
    return [each() is None for each in left]


def test_a_model_is_collected_with_its_state():
    for collected in pool(4).run(abandoned):
        assert all(collected), collected


def closed(group):
    """What is left of a closed state, while the model lives on."""
    model, mesh = build(2)
    state = attached(model, mesh)
    run(model, state, sgd(model), range(2), group.rank)
    left = weakref.ref(state._engine)  # noqa: SLF001
    state.close()
    gc.collect()
    return left() is None


def test_a_closed_state_lets_go_of_residuals():
    assert pool(4).run(closed) == [True] * 4


def half(group, shards):
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model, mesh = build(shards, mp_policy=policy)
    state = attached(model, mesh, "spardl", density=0.05)
    run(model, state, sgd(model), range(4), group.rank)
    state.check_replicas()
    (kind,) = {grad.dtype for grad in gradients_of(model).values()}
    return str(kind), state.metrics()["skipped_steps"]


def test_mixed_precision():
    assert pool(4).run(half, 2) == [("torch.float32", 0.0)] * 4


def accumulate(group, shards, overlap):
    """The law over steps of two backward passes, of which the last is reduced."""
    model, mesh = build(shards)
    recorder = Recorder(model)
    state = attached(model, mesh, "dense", on_nonfinite="zero", overlap=overlap)
    for step in range(2):
        model.set_requires_gradient_sync(False)
        model(batch(group.rank, 2 * step)).square().mean().backward()
        model.set_requires_gradient_sync(True)
        model(batch(group.rank, 2 * step + 1)).square().mean().backward()
        if not overlap:
            state.reduce()
        given = sum_over_replicas(mesh, recorder.found)
        replicas = dist.get_world_size() // shards
        for name, grad in gradients_of(model).items():
            assert torch.allclose(replicas * grad.double(), given[name], 1e-4, 1e-6)
        model.zero_grad()
    return state.metrics()["steps"]


@pytest.mark.parametrize("overlap", [True, False])
def test_gradient_accumulation(overlap):
    assert pool(4).run(accumulate, 2, overlap) == [2.0] * 4


def unused(group, shards, overlap):
    """What replicas have that use one branch each, then all the same one."""
    model, mesh = build(shards, "branches")
    state = attached(model, mesh, "topk", density=0.1, overlap=overlap)
    optimizer = sgd(model)
    seen = []
    for step, take in enumerate(["both", "own", "left", "own", "left"]):
        own = "left" if group.rank < shards else "right"
        model.take = own if take == "own" else take
        optimizer.zero_grad()
        before = residual_of(state)["right.weight"]
        model(batch(group.rank, step)).square().mean().backward()
        if not overlap:
            state.reduce()
        missing = [n for n, p in model.named_parameters() if p.grad is None]
        same = torch.equal(before, residual_of(state)["right.weight"])
        seen.append((missing, same))
        optimizer.step()
        state.check_replicas()
    return seen


@pytest.mark.parametrize("overlap", [True, False])
def test_parameters_that_are_not_used(overlap):
    for seen in pool(4).run(unused, 2, overlap):
        for take, (missing, same) in zip("bolol", seen, strict=True):
            # Where one replica has a gradient, all step; where none has, it waits.
            assert missing == (["right.weight", "right.bias"] if take == "l" else [])
            assert same == (take == "l")
