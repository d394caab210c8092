"""Clipping: the norm of a worker's own gradient is bounded before it is remembered."""

from itertools import chain

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.hooks.training import (
    SIZES,
    batch,
    given_gradients,
    gradients_of,
    make_model,
    optimizer_of,
    residual_of,
    train,
    wrap,
)
from tests.workers import pool
from thinwire.hooks.clipping import clip_

STEPS = 5
CAP = 0.005  # megabytes: three buckets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 30.0, 1e6])
def test_the_factor_is_that_of_clip_grad_norm(clip, dtype):
    torch.manual_seed(0)
    pieces = [torch.randn(n).to(dtype) for n in (700, 0, 1, 300)]
    theirs = [torch.nn.Parameter(piece.float()) for piece in pieces]
    for parameter in theirs:
        parameter.grad = parameter.detach().clone()
    torch.nn.utils.clip_grad_norm_(theirs, clip)
    clip_(pieces, clip)
    for piece, parameter in zip(pieces, theirs, strict=True):
        torch.testing.assert_close(piece, parameter.grad.to(dtype))


def test_the_bound_is_free_of_the_loss_scale():
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    plain, scaled = gradient.clone(), 1024 * gradient
    clip_([plain], 0.5)
    clip_([scaled], 0.5, scale=1024.0)
    assert torch.equal(scaled, 1024 * plain)


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
def test_a_norm_that_is_not_finite_is_left_for_the_guard(bad):
    pieces = [torch.ones(3), torch.tensor([1.0, bad])]
    clip_(pieces, 1.0)
    assert all(piece.isnan().all() for piece in pieces)


def by_hand(gradients, clip):
    """Gradients that are clipped before DDP sees them, as torch does."""
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    return {n: p.grad for n, p in zip(gradients, parameters, strict=True)}


def reduced(group, scope, clip, by_user, cap=CAP):
    """Means and residuals of some steps, clipped by the library or by the user."""
    model = wrap("given", bucket_cap_mb=cap)
    own = None if by_user else clip
    state = thinwire.attach(model, "spardl", density=0.1, scope=scope, clip=own)
    seen = []
    for step in range(STEPS):
        gradients = given_gradients(group.rank, step)
        if by_user:
            gradients = by_hand(gradients, clip)
        model.zero_grad()
        model(gradients).backward()
        seen.append((gradients_of(model), residual_of(state)))
    return seen


def same(one, other):
    """Whether means and residuals of all ranks and steps have the same bits."""
    pairs = zip(chain(*one), chain(*other), strict=True)
    return all(
        torch.equal(mine[name], theirs[name])
        for ours, hand in pairs
        for mine, theirs in zip(ours, hand, strict=True)
        for name in SIZES
    )


@pytest.mark.processes
@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("clip", [1.0, 410.0, 1e6])
def test_it_is_clipping_by_hand_before_the_reduction_to_the_bit(scope, clip):
    ours = pool(2).run(reduced, scope, clip, False)
    assert same(ours, pool(2).run(reduced, scope, clip, True))


@pytest.mark.processes
def test_the_norm_does_not_depend_on_ddps_buckets():
    """They differ in the first step of a process, which may be a resumed one."""
    ours = pool(2).run(reduced, "model", 3.0, False)
    assert same(ours, pool(2).run(reduced, "model", 3.0, False, 25))


def put_in(group, method, options, kind="given"):
    """What this rank's first gradient became: norms before and after clipping."""
    model = wrap(kind, bucket_cap_mb=CAP)
    state = thinwire.attach(model, method, **options)
    gradients = given_gradients(group.rank, 0)
    model(gradients).backward()
    return gradients, gradients_of(model), residual_of(state)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["topk", "bf16", "gs-sgd", "auto", "dense"])
def test_what_all_ranks_put_in_is_the_sum_of_clipped_gradients(method):
    ranks = pool(2).run(put_in, method, {"clip": 2.0})
    expected = {name: torch.zeros(size) for name, size in SIZES.items()}
    for gradients, _, _ in ranks:
        norm = torch.cat(list(gradients.values())).norm()
        assert norm > 100
        for name in SIZES:
            expected[name] += gradients[name] * 2.0 / norm
    for name in SIZES:
        means = 2 * ranks[0][1][name]
        left = sum(rank[2].get(name, torch.zeros(())) for rank in ranks)
        torch.testing.assert_close(means + left, expected[name])


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spardl", "dense"])
def test_a_bound_that_is_never_reached_changes_nothing(method):
    with_clip = pool(2).run(train_with, method, {"clip": 1e9})
    without = pool(2).run(train_with, method, {})
    for left, right in zip(with_clip, without, strict=True):
        assert left == pytest.approx(right, rel=1e-6 if method == "dense" else 0)


def train_with(group, method, options):
    return train(group, method=method, **options)[0]


def under_a_scale(group, scale):
    model = wrap()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    thinwire.attach(model, "topk", density=0.05, grad_scaler=scaler, clip=1e-3)
    optimizer = optimizer_of(model)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(batch(group.rank, step)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().clone() for p in model.module.parameters()]


@pytest.mark.processes
def test_a_grad_scaler_does_not_change_what_is_clipped():
    one, other = (pool(2).run(under_a_scale, scale)[0] for scale in (64.0, 4096.0))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def rows_and_the_rest(group, sparse, clip):
    """Mean gradients of a model with sparse rows, and this rank's own ones."""
    own = make_model("words")
    own(batch(group.rank, 0)).square().mean().backward()
    torch.manual_seed(0)
    model = DDP(make_model("words"))
    thinwire.attach(model, "dense", sparse=sparse, clip=clip)
    model(batch(group.rank, 0)).square().mean().backward()
    return [
        {n: p.grad.to_dense() for n, p in each.named_parameters()}
        for each in (own, model.module)
    ]


@pytest.mark.processes
@pytest.mark.parametrize("sparse", ["gather", "union"])
def test_rows_of_sparse_embeddings_are_part_of_the_norm(sparse):
    ranks = pool(2).run(rows_and_the_rest, sparse, 1e-3)
    norms = [torch.cat([g.view(-1) for g in own.values()]).norm() for own, _ in ranks]
    for name, mean in ranks[1][1].items():
        clipped = [
            own[name] * 1e-3 / norm for (own, _), norm in zip(ranks, norms, strict=True)
        ]
        torch.testing.assert_close(mean, sum(clipped) / 2, rtol=0.003, atol=1e-8)


def old_gradient(group, view):
    """The mean of "second" alone, while "first" holds a gradient of before."""
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": view}
    model = wrap("given", bucket_cap_mb=25, **options)
    thinwire.attach(model, "dense", clip=5.0, feedback="none")
    given = given_gradients(0, 0)
    model({"first": given["first"]}).backward()
    first = model.module.first.grad.clone()
    for _ in range(2):
        model.module.second.grad = None
        model({"second": given["second"]}).backward()
    assert torch.equal(model.module.first.grad, first)
    return given["second"], model.module.second.grad


@pytest.mark.processes
@pytest.mark.parametrize("view", [False, True])
def test_what_an_unused_parameter_still_holds_is_no_part_of_the_norm(view):
    for given, mean in pool(2).run(old_gradient, view):
        torch.testing.assert_close(mean, 5.0 * given / given.norm())


def unused(group):
    """Passes of which some ranks leave parameters out, and a rank ends early."""
    model = wrap("branches", find_unused_parameters=True)
    state = thinwire.attach(model, "topk", density=0.05, clip=0.01)
    optimizer = optimizer_of(model)
    with model.join():
        for step in range(4 + group.rank):
            model.module.take = ["left", "right", "both"][(step + group.rank) % 3]
            optimizer.zero_grad()
            model(batch(group.rank, step)).square().mean().backward()
            optimizer.step()
    state.check_replicas()
    return state.metrics()["steps"]


@pytest.mark.processes
def test_ranks_without_a_gradient_take_part():
    assert pool(2).run(unused) == [5.0, 5.0]
