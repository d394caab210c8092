"""Training through the hook equals plain DDP, up to the residuals."""

from itertools import product

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
from thinwire.errors import ConfigError

pytestmark = pytest.mark.processes

METHODS = ["dense", "bf16", "topk", "gtopk", "spardl"]


def run(group, options):
    return train(group, **options)


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    # With sparse rows the reducer's own pipeline runs, and adds in another order.
    [("words", 2), *product(["plain", "mixed", "tied"], [2, 3, 5])],
)
def test_dense_is_plain_ddp_to_the_bit(kind, ranks):
    ours = pool(ranks).run(run, {"method": "dense", "kind": kind})
    ddp = pool(ranks).run(run, {"method": None, "kind": kind})
    assert ours[0][0] == ddp[0][0]
    assert same(ours[0][1], ddp[0][1])


@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("kind", ["plain", "mixed", "tied", "words"])
@pytest.mark.parametrize("method", METHODS[1:])
def test_everything_delivered_is_plain_ddp(method, kind, scope):
    options = {"kind": kind, "scope": scope}
    options |= {} if method == "bf16" else {"density": 1.0, "codec": "raw"}
    ours = pool(2).run(run, {"method": method, **options})
    ddp = pool(2).run(run, {"method": None, "kind": kind})
    # bf16 rounds a step's sum to 8 bits and delivers the rest in the next one.
    close = {"rtol": 0.02, "atol": 2e-4} if method == "bf16" or kind == "mixed" else {}
    for name, parameter in ddp[0][1].items():
        torch.testing.assert_close(ours[0][1][name], parameter, **close)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize(
    "ddp",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=["default", "bucket-view", "static-graph", "find-unused"],
)
def test_replicas_stay_identical(ranks, method, scope, ddp):
    ours = pool(ranks).run(run, {"method": method, "scope": scope, "ddp": ddp})
    # train() has compared the replicas' checksums over the wire already.
    assert all(same(ours[0][1], each[1]) for each in ours)
    assert ours[0][2]["steps"] == 5


def conservation(group, method, scope, ddp, steps=5):
    """Per step: what all ranks put in, what the step delivered, and the residual."""
    model = wrap("given", bucket_cap_mb=0.005, **ddp)
    state = thinwire.attach(model, method, scope=scope)
    put_in, delivered = dict.fromkeys(SIZES, 0.0), dict.fromkeys(SIZES, 0.0)
    report = []
    for step in range(steps):
        model.zero_grad()
        gradients = given_gradients(group.rank, step)
        model(gradients).backward()
        for name, mean in gradients_of(model).items():
            put_in[name] = put_in[name] + gradients[name]
            delivered[name] = delivered[name] + mean * group.size
        report.append((dict(put_in), dict(delivered), residual_of(state)))
    return report


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["bucket", "model"])
@pytest.mark.parametrize("ddp", [{}, {"gradient_as_bucket_view": True}], ids=str)
def test_nothing_is_lost_from_step_0(ranks, method, scope, ddp):
    # Powers of two: the division by the number of ranks is exact.
    reports = pool(ranks).run(conservation, method, scope, ddp)
    for step in zip(*reports, strict=True):
        for name in SIZES:
            put_in = sum(rank[0][name] for rank in step)
            residual = sum(rank[2].get(name, 0.0) for rank in step)
            assert torch.equal(put_in, step[0][1][name] + residual), name


def accumulate_without_sync(group):
    model = wrap("given")
    state = thinwire.attach(model, "topk")
    gradients = [given_gradients(group.rank, step) for step in range(3)]
    for each in gradients[:2]:
        with model.no_sync():
            model(each).backward()
    sent = state.metrics()["bytes_sent"]
    model(gradients[2]).backward()
    put_in = {name: sum(each[name] for each in gradients) for name in SIZES}
    return sent, put_in, gradients_of(model), residual_of(state)


def test_no_sync_sends_nothing_and_loses_nothing():
    ranks = pool(2).run(accumulate_without_sync)
    assert len({sent for sent, *_ in ranks}) == 1
    for name in SIZES:
        put_in = sum(rank[1][name] for rank in ranks)
        residual = sum(rank[3][name] for rank in ranks)
        assert torch.equal(put_in, 2 * ranks[0][2][name] + residual)


def clip(group):
    model = wrap()
    thinwire.attach(model, "topk", density=0.1)
    model(batch(group.rank, 0)).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    return norm, gradients_of(model)


def test_clipping_after_the_hook_sees_the_mean():
    (norm, left), (other, right) = pool(2).run(clip)
    assert norm == other
    assert norm > 1e-3
    assert same(left, right)
    total = torch.cat([g.view(-1) for g in left.values()]).norm()
    torch.testing.assert_close(total, torch.tensor(1e-3))


def skip_a_branch(group, scope):
    model = wrap("branches", find_unused_parameters=True)
    state = thinwire.attach(model, "topk", density=0.05, scope=scope)
    optimizer = optimizer_of(model)
    seen = []
    for step, take in enumerate(["both", "both", "both", "left", "right", "split"]):
        model.module.take = ["left", "right"][group.rank] if take == "split" else take
        optimizer.zero_grad()
        before = residual_of(state)
        model(batch(group.rank, step)).square().mean().backward()
        seen.append((take, before, residual_of(state), gradients_of(model)))
        optimizer.step()
    state.check_replicas()
    return seen


@pytest.mark.parametrize("scope", ["bucket", "model"])
def test_a_parameter_unused_everywhere_keeps_its_residual(scope):
    for rank in pool(2).run(skip_a_branch, scope):
        for take, before, after, gradients in rank:
            for name in before:
                unused = {"left": "right", "right": "left"}.get(take)
                if unused is not None and name.startswith(unused):
                    assert before[name].count_nonzero() > 0 or name.endswith("bias")
                    assert torch.equal(before[name], after[name])
                    assert gradients[name] is None
                else:
                    assert gradients[name] is not None
                if take == "both":
                    assert not torch.equal(before[name], after[name])


PARTS = [["first"], ["second", "third"], ["first", "third"], list(SIZES)]


def alternate(group, method, options):
    """Passes of which each uses some parameters, whose gradients alone are reset.

    As of a generator and its critic in one model. `.grad` of the others is of an
    earlier pass: DDP reduces it too, and leaves it as it is.
    """
    model = wrap("given", find_unused_parameters=True, **options)
    state = thinwire.attach(model, method, **({} if method == "bf16" else CHOICE))
    put_in = {name: torch.zeros(size) for name, size in SIZES.items()}
    delivered = {name: torch.zeros(size) for name, size in SIZES.items()}
    parameters = dict(model.module.named_parameters())
    for step in range(12):
        # On the second rank "first" is sometimes unused where the first one uses it.
        used = PARTS[step % 4]
        without = step >= 8 and group.rank == 1 and len(used) > 1
        mine = [n for n in used if not without or n != "first"]
        for name in used:
            parameters[name].grad = None
        before = gradients_of(model)
        gradients = given_gradients(group.rank, step)
        model({name: gradients[name] for name in mine}).backward()
        for name, grad in gradients_of(model).items():
            if name in used:
                delivered[name] += group.size * grad
            elif before[name] is not None:
                assert torch.equal(grad, before[name])
        for name in mine:
            put_in[name] += gradients[name]
    return put_in, delivered, residual_of(state)


CHOICE = {"density": 0.1}


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("method", ["topk", "spardl", "bf16"])
def test_what_an_unused_parameter_still_holds_is_not_sent_again(method, view):
    ranks = pool(2).run(alternate, method, {"gradient_as_bucket_view": view})
    for name in SIZES:
        put_in, left = (sum(rank[i][name] for rank in ranks) for i in (0, 2))
        assert torch.equal(put_in, ranks[0][1][name] + left), name


@pytest.mark.parametrize("method", METHODS)
def test_uneven_inputs_under_join(method):
    ours = pool(3).run(run, {"method": method, "joined": True})
    assert all(same(ours[0][1], each[1]) for each in ours)
    assert [len(losses) for losses, *_ in ours] == [5, 6, 7]


def freeze_late(group, scope):
    model = wrap("branches", find_unused_parameters=True)
    model.module.right.requires_grad_(False)
    state = thinwire.attach(model, "topk", density=0.1, scope=scope)
    optimizer = optimizer_of(model)
    for step in range(5):
        optimizer.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
        optimizer.step()
    state.check_replicas()
    return sorted(residual_of(state))


@pytest.mark.parametrize("scope", ["bucket", "model"])
def test_a_layer_frozen_after_wrapping_takes_no_part(scope):
    for names in pool(2).run(freeze_late, scope):
        assert names == ["left.bias", "left.weight"]


def thaw_late(group):
    model = make_model("branches")
    model.right.requires_grad_(False)
    model = DDP(model)
    model.module.right.requires_grad_(True)
    thinwire.attach(model, "topk")
    try:
        model(batch(group.rank, 0)).square().mean().backward()
    except ConfigError as error:
        return str(error)
    return None


def test_a_layer_thawed_after_wrapping_is_an_error():
    for message in pool(2).run(thaw_late):
        assert "'right.weight'" in message
        assert "then wrap, then attach" in message
