"""thinwire.AdamW on given gradients: the rule, and torch.optim.AdamW where all came."""

import copy
import io
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import thinwire
from tests.optim.oracle import Oracle
from thinwire.errors import ConfigError
from thinwire.layout import Layout

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16]
)
SOURCES = pytest.mark.parametrize("known", [False, True], ids=["grad", "state"])


@dataclass
class Unit:
    layout: Layout
    indices: torch.Tensor


@dataclass
class Told:
    units: tuple = ()
    finite: bool = True


@dataclass
class Source:
    """Stands in for what `attach` returns."""

    parameters: dict
    told: Told = field(default_factory=Told)

    def deliveries(self):
        return self.told


def parameters(dtype=torch.float32):
    """Parameters that lie in memory in all ways, one of them with gaps."""
    torch.manual_seed(0)
    tensors = [
        torch.randn(40, 30),
        torch.randn(7),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(20, 11).t(),
    ]
    made = [nn.Parameter(tensor.to(dtype)) for tensor in tensors]
    return [*made, nn.Parameter(torch.randn(20, 13).to(dtype)[:, :9])]


class Training:
    """Steps of an optimizer on random gradients, of which a part is delivered.

    With `known`, the optimizer is told of the delivered elements in two units.
    """

    def __init__(self, params, *, known, density=0.1, **options):
        self.params, self.density = params, density
        self.names = {str(i): p for i, p in enumerate(params)}
        self.source = Source(self.names) if known else None
        # The last parameter is not reduced by anyone.
        half = len(params) // 2
        layout = Layout.of(self.names.items())
        names = layout.names[:-1]
        self.layouts = [layout.pick(names[:half]), layout.pick(names[half:])]
        self.random = torch.Generator().manual_seed(1)
        options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1} | options
        self.optimizer = thinwire.AdamW(groups_of(params), state=self.source, **options)

    def draw(self, density=None):
        """New gradients; the masks of what each delivers."""
        density = self.density if density is None else density
        masks = {}
        for param in self.params:
            grad = torch.randn(param.shape, generator=self.random)
            mask = torch.rand(param.shape, generator=self.random) < density
            if param is self.params[-1]:
                mask = torch.ones_like(mask)
            param.grad = torch.empty_like(param).copy_(grad * mask)
            masks[param] = param.grad != 0
        self.deliver(masks, whole=density == 1)
        return masks

    def deliver(self, masks, *, whole):
        if self.source is None:
            return
        units = []
        for layout in self.layouts:
            flat = torch.zeros(layout.size, dtype=torch.bool)
            for name, view in layout.views(flat).items():
                view.copy_(masks[self.names[name]])
            flat[::97] = True  # lists are padded with zeros
            units.append(Unit(layout, flat.nonzero().view(-1).int()))
        self.source.told = Told(() if whole else tuple(units))

    def values(self):
        return [param.detach().clone() for param in self.params]


def groups_of(params):
    """Groups that differ in everything."""
    other = {"lr": 3e-2, "weight_decay": 0.0, "betas": (0.5, 0.6), "maximize": True}
    return [{"params": params[::2]}, {"params": params[1::2], "eps": 1e-5} | other]


def follow(training, oracle, densities):
    for density in densities:
        oracle.step(training.draw(density))
        training.optimizer.step()
        oracle.check()


@DTYPES
@SOURCES
def test_the_rule(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    # Waits beyond the end of the second group's table, and several due decays.
    follow(training, oracle, [0.1] * 100 + [0.0] * 230 + [0.1] * 3)
    assert oracle.checked == 333 * len(training.params)


@DTYPES
@SOURCES
def test_densities_change(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    follow(training, oracle, [1, 1, 0.5, 0.1, 0, 0.1, 1, 0.1, 0.1, 1, 1, 1, 0.3])


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("known", [False, True])
def test_with_everything_delivered_it_is_torchs_to_the_bit(how, known):
    training = Training(parameters(), known=known, **how)
    own = parameters()
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    theirs = torch.optim.AdamW(groups_of(own), **options, **how)
    for _ in range(70):
        training.draw(1)
        for mine, other in zip(training.params, own, strict=True):
            other.grad = mine.grad.clone()
        training.optimizer.step()
        theirs.step()
    assert_same(training.params, own)
    mine, wanted = training.optimizer.state_dict(), theirs.state_dict()
    assert str(mine) == str(wanted)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@DTYPES
def test_with_and_without_a_state_the_bits_are_the_same(dtype):
    both = [Training(parameters(dtype), known=known) for known in (False, True)]
    for density in [0.1] * 70 + [0.5, 0.0, 0.1]:
        for each in both:
            each.draw(density)
            each.optimizer.step()
    assert_same(both[0].values(), both[1].values())


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def resumed(training, how):
    """The same training with parameters and an optimizer of its own."""
    if how == "copy":
        return copy.deepcopy(training)
    options = {"lr": 7.0, "betas": (0.3, 0.3), "weight_decay": 7.0}
    other = Training(
        parameters(training.params[0].dtype),
        known=training.source is not None,
        **options,
    )
    other.random.set_state(training.random.get_state())
    for mine, theirs in zip(other.params, training.params, strict=True):
        mine.data.copy_(theirs)
    state = training.optimizer.state_dict()
    if how == "file":
        state = saved_and_loaded(training.optimizer)
    other.optimizer.load_state_dict(state)
    return other


@DTYPES
@SOURCES
@pytest.mark.parametrize("how", ["dict", "file", "copy"])
@pytest.mark.parametrize("at", [0, 3, 70])
def test_a_resumed_training_goes_on_to_the_bit(dtype, known, how, at):
    training = Training(parameters(dtype), known=known)
    for step in range(at):
        training.draw(1 if step < 2 else 0.1)
        training.optimizer.step()
    again = resumed(training, how)
    for step in range(70):
        for each in (training, again):
            each.draw(0.1 if step < 68 else 1)
            each.optimizer.step()
    assert_same(training.values(), again.values())


@DTYPES
@SOURCES
def test_a_checkpoint_of_torchs_is_continued(dtype, known):
    training = Training(parameters(dtype), known=known)
    oracle = Oracle(training.optimizer)
    single = [nn.Parameter(p.detach().float()) for p in training.params]
    theirs = torch.optim.AdamW(groups_of(single), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        masks = training.draw(1)
        for mine, other in zip(training.params, single, strict=True):
            other.grad = mine.grad.float()
        oracle.step(masks)
        theirs.step()
    training.optimizer.load_state_dict(theirs.state_dict())
    oracle.state = {
        mine: {
            "t": 3,
            "decays": 0,
            "m": theirs.state[other]["exp_avg"].double(),
            "v": theirs.state[other]["exp_avg_sq"].double(),
            "last": torch.full(mine.shape, 3.0, dtype=torch.float64),
            "decay": torch.ones(mine.shape, dtype=torch.float64),
        }
        for mine, other in zip(training.params, single, strict=True)
    }
    follow(training, oracle, [0.1] * 5)


def test_a_state_that_was_cleared_starts_again():
    training = Training(parameters(), known=True)
    follow(training, Oracle(training.optimizer), [0.1] * 5)
    training.optimizer.state.clear()
    follow(training, Oracle(training.optimizer), [0.1] * 5)


@SOURCES
def test_rates_and_betas_that_change_and_tensors(known):
    training = Training(parameters(), known=known, lr=torch.tensor(1e-2))
    oracle = Oracle(training.optimizer)
    for step in range(30):
        for group in training.optimizer.param_groups:
            group["betas"] = (0.8 + step / 200, torch.tensor(0.95))
            group["weight_decay"] = 0.1 * (step % 3)
            group["lr"] = group["lr"] * 0.9 if step != 20 else 0.0
        follow(training, oracle, [0.2])


@SOURCES
def test_a_step_that_is_not_made_is_none(known):
    """Skipped by a scaler or by the user: the parameter has not waited."""
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        if step % 3:
            oracle.step(masks)
            training.optimizer.step()
            oracle.check()


def test_a_step_that_is_not_finite_is_none():
    training = Training(parameters(), known=True)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        before = training.values()
        if step % 3 == 0:
            training.source.told.finite = False
            for param in training.params:
                param.grad.fill_(float("nan"))
            training.optimizer.step()
            assert_same(training.params, before)
        else:
            oracle.step(masks)
            training.optimizer.step()
            oracle.check()


@SOURCES
@pytest.mark.parametrize("to_none", [False, True])
def test_a_parameter_without_a_gradient(known, to_none):
    """Without one there is no step for it, as in torch; with zeros it waits."""
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    for step in range(20):
        masks = training.draw(0.2)
        unused = training.params[step % 3]
        masks[unused] = torch.zeros_like(masks[unused])
        training.deliver(masks, whole=False)
        unused.grad = None if to_none else torch.zeros_like(unused)
        oracle.step(masks)
        training.optimizer.step()
        oracle.check()


@SOURCES
def test_gradients_that_are_scaled_after_backward(known):
    training = Training(parameters(), known=known)
    oracle = Oracle(training.optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(1))
    applied = 0
    for step in range(20):
        training.draw(0.2)
        if step == 7:
            training.params[0].grad[0, 0] = float("inf")
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.params, 0.01)
        before = [int(s["step"]) for s in training.optimizer.state.values()]
        if step != 7:
            oracle.step()
        scaler.step(training.optimizer)
        scaler.update()
        after = [int(s["step"]) for s in training.optimizer.state.values()]
        applied += before != after
        if step != 7:
            oracle.check()
    assert applied == 19
    assert scaler.get_scale() == 32.0


def test_autograd_sees_that_parameters_have_changed():
    """As with any optimizer: else a graph that is used later gives wrong gradients."""
    for known in (False, True):
        training = Training(parameters(), known=known)
        training.draw(0.1)
        uses = [(param * param).sum() for param in training.params]
        training.optimizer.step()
        for each in uses:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                each.backward()


def words(weight, options):
    table = nn.Embedding(*weight.shape, sparse=True, _weight=weight)
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1} | options
    return table, thinwire.AdamW(table.parameters(), **options)


@DTYPES
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_rows_of_a_sparse_embedding(dtype, maximize, gaps):
    torch.manual_seed(0)
    memory = torch.randn(50, 8).to(dtype)
    outside = memory[:, 5:].clone()
    weight = memory[:, :5] if gaps else memory[:, :5].contiguous()
    table, optimizer = words(nn.Parameter(weight).data, {"maximize": maximize})
    oracle = Oracle(optimizer)
    for step in range(150):
        optimizer.zero_grad()
        # Some rows wait beyond the steps after which decay is due; duplicates.
        table(torch.randint(6 if step < 140 else 50, (4,))).square().sum().backward()
        oracle.step()
        optimizer.step()
        oracle.check()
    assert torch.equal(memory[:, 5:], outside)


def test_rows_touched_in_every_step_are_torchs_sparse_adams():
    start = torch.randn(20, 5)
    table, optimizer = words(start.clone(), {"weight_decay": 0.0})
    other = nn.Embedding(20, 5, sparse=True, _weight=start.clone())
    theirs = torch.optim.SparseAdam(other.parameters(), lr=1e-2, betas=(0.9, 0.99))
    for _ in range(20):
        rows = torch.randint(20, (6,))
        for each, by in ((table, optimizer), (other, theirs)):
            by.zero_grad()
            each(rows).square().sum().backward()
            by.step()
    torch.testing.assert_close(table.weight, other.weight, rtol=1e-5, atol=1e-6)


def test_closures_and_schedulers():
    model = nn.Linear(5, 3)
    optimizer = thinwire.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 5)).square().mean()
        loss.backward()
        return loss.detach()

    losses = []
    for _ in range(29):
        losses.append(float(optimizer.step(closure)))
        scheduler.step()
    assert losses[-1] < losses[0] / 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"amsgrad": True}, "amsgrad is True"),
        ({"capturable": True}, "capturable is True"),
        ({"differentiable": True}, "differentiable is True"),
    ],
)
def test_what_it_refuses(options, said):
    with pytest.raises(ConfigError, match=said):
        thinwire.AdamW(parameters(), **options)
    plain = parameters()
    saved = torch.optim.AdamW(plain, **options).state_dict()
    with pytest.raises(ConfigError, match=said):
        thinwire.AdamW(plain).load_state_dict(saved)


def test_other_dtypes_are_refused():
    with pytest.raises(ConfigError, match="float64"):
        thinwire.AdamW([nn.Parameter(torch.zeros(3, dtype=torch.float64))])
