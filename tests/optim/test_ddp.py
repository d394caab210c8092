"""thinwire.AdamW in DDP processes: no delivered element is lost, no step miscounted.

Every step is compared with the rule on `.grad` alone: elements of sparsely reduced
parameters that are not zero were delivered, whatever the state says.
"""

import io
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import thinwire
from tests.hooks.training import batch, wrap
from tests.optim.given import Training, parameters
from tests.optim.oracle import Oracle
from tests.workers import pool

pytestmark = pytest.mark.processes

SPARSE = {"method": "topk", "density": 0.05}


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compile kernels here: it would take long of the time that ranks have."""
    for known in (False, True):
        training = Training(parameters(), known=known)
        for _ in range(65):
            training.draw()
            training.optimizer.step()


class Loop:
    """A user's training loop, whose steps are checked."""

    def __init__(self, group, kind="plain", ddp=(), **options):
        self.group = group
        self.model = wrap(kind, **dict(ddp))
        self.state = thinwire.attach(self.model, **{**SPARSE, **options})
        self.optimizer = thinwire.AdamW(
            self.model.parameters(), lr=1e-2, betas=(0.9, 0.99), state=self.state
        )
        self.oracle = Oracle(self.optimizer)
        self.batches = self.skipped = self.partial = 0

    def backward(self, *, sync=True, scaler=None, bad=False):
        self.batches += 1
        x = batch(self.group.rank, self.batches)
        if bad and self.group.rank == 1:
            x[0, 0] = float("inf")
        with nullcontext() if sync else self.model.no_sync():
            loss = self.model(x).square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()

    def step(self):
        told = self.state.deliveries()
        before = self.values()
        if told.finite:
            names = {name for unit in told.units for name in unit.layout.names}
            some = [self.state.parameters[name] for name in names]
            self.oracle.step(
                {
                    p: torch.ones(p.shape, dtype=torch.bool)
                    for p in self.model.parameters()
                    if not any(p is each for each in some)
                }
            )
            self.partial += bool(names)
        self.optimizer.step()
        if told.finite:
            self.oracle.check()
        else:
            self.skipped += 1
            assert same(before, self.values())

    def train(self, steps, **options):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.backward(**options)
            self.step()

    def values(self):
        return [param.detach().clone() for param in self.model.parameters()]


def same(one, other):
    return all(map(torch.equal, one, other))


def density_changes(loop):
    loop.train(4)
    loop.state.density = 0.5
    loop.train(3)
    loop.state.density = 0.01
    loop.train(3)


def no_sync(loop):
    for _ in range(6):
        loop.optimizer.zero_grad()
        loop.backward(sync=False)
        loop.backward()
        loop.step()


def several_passes(loop):
    """DDP reduces what the earlier pass delivered again, with the new gradient."""
    for _ in range(6):
        loop.optimizer.zero_grad()
        loop.backward()
        loop.backward()
        loop.backward(sync=False)
        loop.backward()
        loop.step()


def skipped_by_the_user(loop):
    for step in range(10):
        loop.optimizer.zero_grad(set_to_none=step % 2 == 0)
        loop.backward()
        if step % 4 == 1:
            loop.optimizer.zero_grad(set_to_none=False)
            loop.backward()
        if step % 3 == 2:
            loop.backward()
        loop.step()


def unused(loop, *, to_none):
    for step in range(12):
        loop.optimizer.zero_grad(set_to_none=to_none)
        takes = ["left", "right", "both"]
        loop.model.module.take = takes[(step // 2 + step * loop.group.rank) % 3]
        loop.backward()
        loop.step()


def unused_to_zeros(loop):
    unused(loop, to_none=False)


def unused_to_none(loop):
    unused(loop, to_none=True)


def one_branch_after_the_other(loop):
    """The second pass leaves alone what the first one has delivered."""
    for _ in range(6):
        loop.optimizer.zero_grad()
        for loop.model.module.take in ("left", "right"):
            loop.backward()
        loop.step()


def frozen(loop):
    left = loop.model.module.left
    loop.train(4)
    left.requires_grad_(False)
    loop.train(3)
    left.requires_grad_(True)
    loop.train(3)


def not_finite(loop):
    for step in range(9):
        loop.train(1, bad=step == 4)
    assert loop.skipped == 1


def scaler(loop):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(10):
        loop.optimizer.zero_grad()
        loop.backward(scaler=scaler, bad=step == 4)
        scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        if step == 4:
            before = loop.values()
            scaler.step(loop.optimizer)
            assert same(before, loop.values())
        else:
            loop.step()
        scaler.update()
    assert scaler.get_scale() == 512.0


def flush(loop):
    loop.train(4)
    loop.optimizer.zero_grad()
    loop.backward()
    loop.state.flush()
    loop.step()
    loop.train(4)
    loop.optimizer.zero_grad()
    loop.state.flush()
    loop.backward()
    loop.step()


def plain(loop):
    loop.train(8)


def long(loop):
    loop.train(80)


FIND = {"ddp": {"find_unused_parameters": True}, "kind": "branches"}
VIEWS = {"ddp": {"gradient_as_bucket_view": True}}
CASES = [
    *[(plain, {"method": m}) for m in ("topk", "gtopk", "spardl", "gs-sgd", "union")],
    *[(plain, {"method": m}) for m in ("s2", "cheapest", "deepreduce", "dense")],
    (plain, {"method": "union", "granularity": "block", "width": 16}),
    (plain, {"warmup": (2, 3)}),
    (long, {"warmup": "auto", "density": 0.2}),
    (plain, {"method": "auto", "rounds": 1, "visit": 2, "recheck": 3}),
    (plain, {"method": "auto", "candidates": ["dense"], "rounds": 1}),
    (plain, {"min_size": 600}),
    (plain, {"scope": "model"}),
    (plain, {"clip": 0.01}),
    (plain, {"feedback": "momentum"}),
    *[(plain, {"kind": kind}) for kind in ("mixed", "tied", "words", "rows")],
    (plain, VIEWS),
    (density_changes, {}),
    *[(no_sync, options) for options in ({}, VIEWS, {"clip": 0.01})],
    *[(several_passes, options) for options in ({}, VIEWS, {"kind": "mixed"})],
    *[(skipped_by_the_user, options) for options in ({}, VIEWS)],
    *[(unused_to_zeros, o) for o in (FIND, {**FIND, "warmup": 2})],
    *[(unused_to_none, o) for o in (FIND, {**FIND, "warmup": 2})],
    (frozen, FIND),
    (one_branch_after_the_other, FIND),
    *[(not_finite, {"on_nonfinite": mode}) for mode in ("propagate", "zero")],
    (scaler, {}),
    *[(flush, options) for options in ({}, VIEWS, {"kind": "mixed"})],
]


def resumed(group, how, density):
    """Parameters after a training, and after one that was continued from a file."""
    loop = Loop(group, density=density)
    loop.train(5)
    if how == "flush":
        loop.optimizer.zero_grad()
        loop.backward()
        loop.state.flush()
        loop.step()
    file = io.BytesIO()
    states = loop.model.state_dict(), loop.state.state_dict()
    torch.save((*states, loop.optimizer.state_dict()), file)
    file.seek(0)
    again = Loop(group, density=density)
    for each, saved in zip(
        (again.model, again.state, again.optimizer), torch.load(file), strict=True
    ):
        each.load_state_dict(saved)
    again.batches, again.oracle.state = loop.batches, None
    again.oracle.step = again.oracle.check = lambda *_: None
    for each in (loop, again):
        each.train(70)
    return loop.values(), again.values(), loop.optimizer.state_dict()["state"][0]


@pytest.mark.parametrize("how", ["keep", "flush"])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_a_resumed_training_goes_on_to_the_bit(how, density):
    for whole, resumed_, state in pool(2).run(resumed, how, density):
        assert same(whole, resumed_)
        assert state["step"] == 75 + (how == "flush")
        assert (state["pending_decay"] is None) == (density == 1)


def run(group, case, options):
    loop = Loop(group, **options)
    case(loop)
    loop.state.check_replicas()
    return loop.oracle.checked, loop.partial


@pytest.mark.parametrize(
    ("case", "options"), CASES, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_every_step_is_the_rule_on_what_was_delivered(case, options):
    (checked, partial), other = pool(2).run(run, case, options)
    assert (checked, partial) == other
    assert checked > 7
    whole = options.get("method") in ("dense", "auto") or options.get("kind") == "rows"
    assert whole or partial > 3
