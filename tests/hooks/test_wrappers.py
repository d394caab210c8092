"""attach finds the DDP model within what torch.compile and Fabric make of it."""

import pytest
import torch
from torch import nn

import thinwire
from tests.hooks.training import make_model, optimizer_of, step_once, train, wrap
from tests.workers import pool
from thinwire.errors import ConfigError
from thinwire.hooks.inspection import unwrapped


class FabricModule(nn.Module):
    """Holds a model as Lightning Fabric does, and forwards attributes to another."""

    def __init__(self, model, original):
        super().__init__()
        self._forward_module = model
        self._original_module = original

    def forward(self, x):
        return self._forward_module(x)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_original_module"), name)


def compiled(model):
    return torch.compile(model, backend="eager")


def fabric(model):
    return FabricModule(model, getattr(model, "module", model))


WRAPPERS = {
    "compiled": compiled,
    "fabric": fabric,
    "fabric of compiled": lambda model: fabric(compiled(model)),
    "compiled fabric": lambda model: compiled(fabric(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_what_is_held_is_found(wrapper):
    empty = nn.Sequential()  # false, as other modules of length 0
    assert unwrapped(wrapper(empty)) is empty
    assert unwrapped(empty) is empty


def train_within(group, name):
    ddp = wrap()
    model = WRAPPERS[name](ddp)
    state = thinwire.attach(model, "topk")
    optimizer = optimizer_of(model)
    losses = [step_once(model, optimizer, group.rank, step) for step in range(5)]
    assert state.metrics()["bytes_sent"] > 0
    return losses, [p.detach().clone() for p in ddp.module.parameters()]


@pytest.mark.processes
def test_a_model_within_fabric_is_trained_with_the_same_bits():
    held = pool(2).run(train_within, "fabric")
    for (losses, found), (own, parameters, _) in zip(
        held, pool(2).run(train), strict=True
    ):
        assert losses == own
        assert all(map(torch.equal, found, parameters.values()))


def refused(group, name):
    with pytest.raises(ConfigError) as caught:
        thinwire.attach(WRAPPERS[name](make_model()), "topk")
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_without_ddp_is_refused_by_what_it_holds(name):
    for message in pool(2).run(refused, name):
        assert "the model is a Sequential" in message
        assert "model = DDP(model)" in message
