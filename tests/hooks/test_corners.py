"""Cases where a hook could lose gradient, lose an error, or hang."""

import json
import os
import signal

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import thinwire
from tests.hooks.training import (
    SIZES,
    WIDTH,
    batch,
    given_gradients,
    gradients_of,
    make_model,
    optimizer_of,
    residual_of,
    wrap,
)
from tests.workers import fresh, pool
from thinwire.errors import (
    ConfigError,
    InconsistentStateError,
    PeerError,
    ThinwireError,
)

pytestmark = pytest.mark.processes

SECONDS = 3.0


def picture(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(2, 3, 5, 5, generator=generator)


def channels_last(group, attached):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    model = DDP(model)
    state = thinwire.attach(model, "topk", density=0.1) if attached else None
    model(picture(group.rank)).square().sum().backward()
    if state is not None:
        residual = residual_of(state)["weight"]
        assert residual.stride() == model.module.weight.stride()
        state.flush()
    return gradients_of(model)["weight"]


def test_flush_knows_how_parameters_lie_in_memory():
    ours, ddp = pool(2).run(channels_last, True), pool(2).run(channels_last, False)
    torch.testing.assert_close(ours[0], ddp[0])


def bad_step_at_another_scale(group):
    """The residuals before and after it."""
    model = wrap("given", bucket_cap_mb=0.005)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))  # it makes its scale when first used
    state = thinwire.attach(model, "topk", grad_scaler=scaler)
    for step in range(5):
        gradients = given_gradients(group.rank, step)
        if step == 4:
            before = residual_of(state)
            scaler.update(new_scale=512.0)
            gradients["first"][7] = float("inf")  # the last to arrive
        model.zero_grad()
        model(gradients).backward()
    return before, residual_of(state)


def test_a_bad_step_at_another_scale_leaves_the_residuals_at_theirs():
    for before, after in pool(2).run(bad_step_at_another_scale):
        # "third" and "second" were delivered before "first" turned out bad.
        assert all(torch.equal(after[name], before[name]) for name in SIZES)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x):
        return checkpoint(self.second, self.first(x), use_reentrant=True)


def lose_under_checkpointing(group):
    model = DDP(Reentrant(), static_graph=True, bucket_cap_mb=0.001)
    thinwire.attach(model, "topk", timeout=SECONDS)
    optimizer = optimizer_of(model)
    for step in range(5):
        if step == 3 and group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        try:
            model(batch(group.rank, step)).square().mean().backward()
        except PeerError as error:
            return step, error.ranks
        optimizer.step()
    return None


def test_errors_leave_nested_backward_passes():
    outcomes = fresh(2, lose_under_checkpointing, lost=[1], group_timeout=30.0)
    assert outcomes[0].result == (3, (1,))


def lose_under_join(group):
    model = wrap()
    thinwire.attach(model, "topk", timeout=SECONDS)
    try:
        with model.join():
            for step in range(3 if group.rank == 0 else 6):
                if step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                model(batch(group.rank, step)).square().mean().backward()
    except (ThinwireError, RuntimeError) as error:
        return str(error)
    return None


def test_a_joined_rank_does_not_wait_for_a_dead_one():
    outcomes = fresh(2, lose_under_join, lost=[1], group_timeout=30.0)
    assert outcomes[0].error is None, outcomes[0].error
    assert outcomes[0].result is not None


def lose_while_flushing(group):
    model = wrap("given")
    state = thinwire.attach(model, "topk", timeout=SECONDS)
    model(given_gradients(group.rank, 0)).backward()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kinds = []
    for call in (state.flush, state.state_dict):
        try:
            call()
        except ThinwireError as error:
            kinds.append(type(error))
    return kinds


def test_a_failed_flush_leaves_the_state_inconsistent():
    outcomes = fresh(2, lose_while_flushing, lost=[1], group_timeout=30.0)
    assert outcomes[0].result == [PeerError, InconsistentStateError]


def flush_after(group, how):
    model = wrap("given", find_unused_parameters=True)
    options = {"feedback": "none"} if how == "forgetful" else {}
    state = thinwire.attach(model, "topk", **options)
    for step in range(2):
        model.zero_grad()
        gradients = given_gradients(group.rank, step)
        if how == "infinite" and step == 1:
            gradients["first"][0] = float("inf")
        model(gradients).backward()
    if how == "frozen":
        model.module.second.requires_grad_(False)
        model.module.second.grad = None
    residual, before = residual_of(state), gradients_of(model)
    state.flush()
    return residual, before, gradients_of(model), residual_of(state)


def test_flush_after_a_bad_step_delivers_the_residual():
    ranks = pool(2).run(flush_after, "infinite")
    for name in SIZES:
        residual = sum(rank[0][name] for rank in ranks)
        assert ranks[0][1][name].isnan().all()
        assert torch.equal(2 * ranks[0][2][name], residual)
        assert not ranks[0][3][name].any()


def flush_rows_after_a_bad_step(group):
    model = wrap("words")
    state = thinwire.attach(model, "topk", density=0.1)
    optimizer = thinwire.AdamW(model.parameters(), state=state)
    for step in range(4):
        optimizer.zero_grad()
        bad = step == 3 and group.rank == 1
        loss = model(batch(group.rank, step)).square().mean()
        (loss * (float("inf") if bad else 1.0)).backward()
        if step < 3:
            optimizer.step()
    state.flush()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    after = list(model.parameters())
    return [
        (bool(one.isfinite().all()), torch.equal(one, other))
        for one, other in zip(after, before, strict=True)
    ]


def test_flush_after_a_bad_step_drops_its_rows():
    table, *others = pool(2).run(flush_rows_after_a_bad_step)[0]
    assert table == (True, True)
    assert others == [(True, False)] * 2


def test_flush_delivers_nothing_that_was_to_be_forgotten():
    for _, before, after, _ in pool(2).run(flush_after, "forgetful"):
        assert all(torch.equal(before[name], after[name]) for name in SIZES)


def test_flush_leaves_frozen_parameters_alone():
    ranks = pool(2).run(flush_after, "frozen")
    residual = sum(rank[0]["second"] for rank in ranks)
    assert all(rank[2]["second"] is None for rank in ranks)
    assert torch.equal(sum(rank[3]["second"] for rank in ranks), residual)


def nearly_overflow(group):
    model = wrap("given")
    state = thinwire.attach(model, "topk")
    seen = []
    for step in range(4):
        model.zero_grad()
        gradients = given_gradients(group.rank, step)
        if step < 2:
            gradients["first"][0] = 2.5e38
        model(gradients).backward()
        seen.append(all(g.isfinite().all() for g in gradients_of(model).values()))
    return seen, state.metrics()["skipped_steps"]


def test_what_could_overflow_a_residual_counts_as_infinite():
    assert pool(2).run(nearly_overflow) == [([False, False, True, True], 2.0)] * 2


def damage(group, change):
    model = wrap("given")
    state = thinwire.attach(model, "topk")
    model(given_gradients(group.rank, 0)).backward()
    before = residual_of(state)
    saved = state.state_dict()
    (key,) = [key for key in saved if key.startswith("rank ")]
    entries = dict(saved[key], residual=dict(saved[key]["residual"]))
    change(entries)
    try:
        state.load_state_dict({**saved, key: entries})
    except ConfigError as error:
        after = residual_of(state)
        same = all(torch.equal(before[name], after[name]) for name in SIZES)
        return str(error), same
    return None


def lose_a_name(entries):
    del entries["residual"]["first"]


def lose_the_scale(entries):
    del entries["scale"]


def lose_all(entries):
    del entries["residual"]


def add_a_kind(entries):
    entries["velocity"] = entries["residual"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lose_a_name, "'first'"),
        (lose_the_scale, "'scale'"),
        (lose_all, "remembers []"),
        (add_a_kind, "velocity"),
    ],
)
def test_damaged_state_dicts_change_nothing(change, says):
    for message, same in pool(2).run(damage, change):
        assert says in message
        assert same


def other_order(group):
    model = nn.Module()
    for name in ("a", "b") if group.rank == 0 else ("b", "a"):
        model.register_parameter(name, nn.Parameter(torch.zeros(4)))
    try:
        thinwire.attach(DDP(model), "topk")
    except thinwire.AgreementError as error:
        return str(error)
    return None


def test_the_order_of_parameters_is_compared():
    for message in pool(2).run(other_order):
        assert "order of parameters" in message


def change_scope(group):
    model = wrap()
    state = thinwire.attach(model, "topk", scope="model")
    for step in range(4):
        model.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
    model = wrap()
    other = thinwire.attach(model, "topk", scope="bucket")
    other.load_state_dict(state.state_dict())
    residual, loaded = residual_of(state), residual_of(other)
    same = all(torch.equal(residual[name], loaded[name]) for name in residual)
    for step in range(3):
        model.zero_grad()
        model(batch(group.rank, step)).square().mean().backward()
    (entries,) = [v for k, v in other.state_dict().items() if k.startswith("rank ")]
    return same, len(json.loads(entries["units"]))


def test_a_change_of_scope_draws_units_anew():
    for same, units in pool(2).run(change_scope):
        assert same
        assert units > 1


def by_hand(group, scope):
    model = DDP(make_model())
    reducer = thinwire.Pipeline(
        thinwire.collectives.AllGather(0.1), thinwire.codecs.Split()
    )
    try:
        thinwire.hooks.ddp.DDPState(model, reducer, scope=scope)
    except ConfigError as error:
        return str(error)
    return None


def test_states_made_by_hand_are_checked_too():
    assert all("scope is 'modle'" in each for each in pool(2).run(by_hand, "modle"))
