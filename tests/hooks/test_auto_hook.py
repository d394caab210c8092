"""Auto behind DDP: plain DDP after it chooses dense; nothing is lost.

What it chooses depends on the machine: tests that need a choice make it themselves.
"""

import copy
import json

import pytest
import torch

import thinwire
from tests.hooks.training import (
    SIZES,
    given_gradients,
    gradients_of,
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import pool

pytestmark = pytest.mark.processes

DENSE, WHOLE, SPARSE = 0, 1, 2
QUICK = {"density": 0.1, "rounds": 1, "visit": 2, "recheck": 3}
SIGNATURE = thinwire.choosers.Auto(**QUICK).signature


def attached(kind="given", **options):
    model = wrap(kind, bucket_cap_mb=0.005)
    return model, thinwire.attach(model, "auto", **{**QUICK, **options})


def entries_of(state):
    """This rank's entries of a state dict."""
    (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
    return entries


def memories_of(state):
    """What auto remembers of each unit."""
    return json.loads(entries_of(state)["counters"])


def settle_on(state, *choices, left=100):
    """Load the result of a trial; one choice is for all units."""
    saved = copy.deepcopy(state.state_dict())
    (entries,) = [v for k, v in saved.items() if k.startswith("rank ")]
    memories = json.loads(entries["counters"])
    choices = choices * len(memories) if len(choices) == 1 else choices
    for memory, choice in zip(memories, choices, strict=True):
        settled = {"choice": choice, "left": left, "interval": left}
        memory.update(ways=SIGNATURE, **settled)
    entries["counters"] = json.dumps(memories)
    state.load_state_dict(saved)


def accumulates(state, step):
    """Whether a step of this rank accumulates: plain DDP does not."""
    before = state.metrics()["accumulate_ms"]
    step()
    return state.metrics()["accumulate_ms"] > before


def step_given(model, rank, step):
    model.zero_grad()
    gradients = given_gradients(rank, step)
    model(gradients).backward()
    return gradients


class Ledger:
    """What all ranks' gradients came to, in whole numbers."""

    def __init__(self, model, state):
        self.model, self.state = model, state
        self.put_in = dict.fromkeys(SIZES, 0.0)
        self.delivered = dict.fromkeys(SIZES, 0.0)

    def step(self, group, number):
        gradients = step_given(self.model, group.rank, number)
        for name, mean in gradients_of(self.model).items():
            self.put_in[name] = self.put_in[name] + gradients[name]
            self.delivered[name] = self.delivered[name] + mean * group.size
        return self.put_in.copy(), self.delivered.copy(), residual_of(self.state)


def balanced(steps):
    """Whether nothing was lost in one step of all ranks."""
    return all(
        torch.equal(
            sum(rank[0][name] for rank in steps),
            steps[0][1][name] + sum(rank[2][name] for rank in steps),
        )
        for name in SIZES
    )


def through_trials(group, scope, steps):
    model, state = attached(scope=scope)
    ledger = Ledger(model, state)
    report = [ledger.step(group, step) for step in range(steps)]
    state.check_replicas()
    saved = memories_of(state)
    return report, state.metrics(), saved


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("scope", ["bucket", "model"])
def test_nothing_is_lost_while_it_tries_and_afterwards(ranks, scope):
    reports, metrics, saved = zip(
        *pool(ranks).run(through_trials, scope, 14), strict=True
    )
    for step in zip(*reports, strict=True):
        assert balanced(step)
    assert all(each == saved[0] for each in saved)
    choices = [name for name in metrics[0] if name.endswith("_choice")]
    assert len(choices) == (1 if scope == "model" else len(saved[0]))
    assert all(metrics[0][name] in (DENSE, WHOLE, SPARSE) for name in choices)
    assert metrics[0]["steps"] == 14


def settled_on_dense(group, kind, scope):
    """Gradients of DDP and of auto, from where auto has nothing to do any more."""
    ddp, (ours, state) = wrap(kind, bucket_cap_mb=0.005), attached(kind, scope=scope)
    for step in range(2):
        for model in (ddp, ours):
            step_once(model, optimizer_of(model), group.rank, step)
    settle_on(state, DENSE)
    seen = []
    for step in range(2, 6):
        for model in (ddp, ours):
            model.zero_grad()
        ours.module.load_state_dict(ddp.module.state_dict())
        step_once(ddp, optimizer_of(ddp), group.rank, step)
        ran = accumulates(
            state,
            lambda at=step: step_once(ours, optimizer_of(ours), group.rank, at),
        )
        pairs = zip(
            gradients_of(ddp).values(), gradients_of(ours).values(), strict=True
        )
        equal = all(torch.equal(one, other) for one, other in pairs)
        seen.append((not ran, equal))
    state.check_replicas()
    left = {memory["left"] for memory in memories_of(state)}
    entries = entries_of(state)
    return seen, left, entries["step"], entries["passes"], state.metrics()


@pytest.mark.parametrize("kind", ["plain", "mixed"])
@pytest.mark.parametrize("scope", ["bucket", "model"])
def test_settled_on_dense_it_is_plain_ddp_to_the_bit(kind, scope):
    for seen, left, step, passes, metrics in pool(2).run(settled_on_dense, kind, scope):
        # The first step also delivers the residual.
        assert [plain for plain, _ in seen] == [False, True, True, True]
        assert [equal for _, equal in seen] == [False, True, True, True]
        assert left == {96}
        assert step == passes == 6
        assert metrics["residual_norm"] == 0.0


def every_choice(group, choices):
    """Steps on each choice in turn, with different ones for the units of a pass."""
    model, state = attached()
    ledger = Ledger(model, state)
    report = [ledger.step(group, step) for step in range(3)]
    count = len(memories_of(state))
    for number, first in enumerate(choices):
        settle_on(state, *((first + unit) % 3 for unit in range(count)))
        report += [ledger.step(group, 3 + 2 * number + more) for more in range(2)]
    settle_on(state, DENSE)
    report += [ledger.step(group, 40 + more) for more in range(2)]
    plain = not accumulates(state, lambda: report.append(ledger.step(group, 42)))
    settle_on(state, SPARSE)
    report += [ledger.step(group, 50 + more) for more in range(2)]
    state.flush()
    return report, count, plain, residual_of(state)


def test_units_may_choose_differently():
    reports, counts, plain, left = zip(
        *pool(2).run(every_choice, [DENSE, SPARSE, WHOLE, DENSE]), strict=True
    )
    assert counts[0] > 1
    assert all(plain)
    for step in zip(*reports, strict=True):
        assert balanced(step)
    assert not any(vector.any() for vector in left[0].values())


def bad_batch(group, choices):
    """A step with an infinity on rank 1, under these choices, and one after it."""
    model, state = attached()
    for step in range(3):
        step_given(model, group.rank, step)
    settle_on(state, *choices)
    for step in range(3, 5):
        step_given(model, group.rank, step)
    before = residual_of(state)
    model.zero_grad()
    gradients = given_gradients(group.rank, 5)
    if group.rank == 1:
        gradients["first"][7] = float("inf")
    model(gradients).backward()
    bad = [not t.isfinite().all() for t in gradients_of(model).values()]
    after = residual_of(state)
    gradients = step_given(model, group.rank, 6)
    return before, bad, after, gradients, gradients_of(model), residual_of(state)


@pytest.mark.parametrize(
    "choices", [[DENSE, DENSE], [SPARSE, DENSE], [DENSE, SPARSE]], ids=str
)
def test_a_bad_step_poisons_nothing(choices):
    ranks = pool(2).run(bad_batch, choices)
    for _, bad, *_ in ranks:
        assert any(bad)
    for name in SIZES:
        residual = sum(rank[2][name] for rank in ranks)
        assert residual.isfinite().all()
        given = sum(rank[3][name] for rank in ranks)
        delivered, left = 2 * ranks[0][4][name], sum(rank[5][name] for rank in ranks)
        assert torch.equal(residual + given, delivered + left)
        assert torch.equal(ranks[0][4][name], ranks[1][4][name])


def trains(group, options):
    model = wrap()
    state = thinwire.attach(model, "auto", **QUICK | options)
    for step in range(12):
        step_once(model, optimizer_of(model), group.rank, step)
    state.check_replicas()
    return state.metrics()["steps"]


@pytest.mark.parametrize(
    "options",
    [
        {"candidates": ("bf16", "gtopk", "topk")},
        {"candidates": ["union"], "warmup": (1, 0), "on_nonfinite": "unchecked"},
        {"min_size": 3000, "feedback": "momentum"},
        {"warmup": (1, 3), "scope": "model"},
    ],
    ids=str,
)
def test_options_of_attach(options):
    assert pool(2).run(trains, options) == [12.0, 12.0]
