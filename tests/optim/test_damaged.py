"""Damaged state dicts of AdamW: the field is named, and nothing has changed."""

import copy

import pytest
import torch
from torch import nn

import thinwire
from thinwire.errors import ConfigError

NAN, INF = float("nan"), float("inf")
SHAPE = (4, 3)


def trained():
    """An optimizer in the middle: some elements wait, decay is pending."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(SHAPE)), nn.Parameter(torch.randn(5))]
    optimizer = thinwire.AdamW(params, lr=1e-2)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn(param.shape) * (torch.rand(param.shape) < 0.5)
        optimizer.step()
    return optimizer


def state(key, value):
    row = f"{key}={type(value).__name__} {str(value)[:20]}"
    return row, key, lambda s: s["state"][0].__setitem__(key, value)


def group(key, value):
    row = f"{key}={str(value)[:20]}"
    return row, key, lambda s: s["param_groups"][0].__setitem__(key, value)


def poke(key, value):
    return (
        f"{value} in {key}",
        f"{key} of state 0",
        lambda s: s["state"][0][key].__setitem__((1, 1), value),
    )


DAMAGE = [
    *(state("step", value) for value in (NAN, -1, 1.5, None, "3", torch.ones(2))),
    *(state("step", value) for value in (torch.tensor(NAN), torch.tensor(-1.0), True)),
    *(
        state(key, value)
        for key in ("exp_avg", "exp_avg_sq", "delivered_at")
        for value in (
            [0.0],
            {},
            torch.zeros(SHAPE, dtype=torch.int64),
            torch.zeros(SHAPE, dtype=torch.complex64),
            torch.zeros(12),
            torch.zeros(SHAPE).to_sparse(),
            torch.zeros(SHAPE, device="meta"),
        )
    ),
    *(state(key, None) for key in ("exp_avg", "exp_avg_sq")),
    *(poke(key, v) for key in ("exp_avg", "exp_avg_sq") for v in (NAN, INF)),
    poke("exp_avg_sq", -1.0),
    *(poke("delivered_at", value) for value in (NAN, -1.0, 0.5, 4.0)),
    *(state("pending_decay", value) for value in ([NAN], ["1"], 3, [1.0] * 65)),
    *(group("lr", value) for value in (NAN, -1.0, None, "1", torch.tensor(INF))),
    *(group("eps", value) for value in (NAN, -1.0, "1")),
    *(group("weight_decay", value) for value in (INF, -1.0, [0.1])),
    *(group("betas", value) for value in (None, (0.9,), (0.9, 1.0), (NAN, 0.9), "ab")),
    *(group("maximize", value) for value in (1, "no")),
    *(group("foreach", value) for value in (1, "no")),
    *(group("params", value) for value in (None, [None, 1], [[0], 1])),
    ("a parameter twice", "'params'", group("params", [0, 0])[2]),
    ("one parameter fewer", "[1]", group("params", [0])[2]),
    ("a group that is a list", "param_groups", lambda s: s.update(param_groups=[[1]])),
    ("groups lost", "param_groups", lambda s: s.pop("param_groups")),
    ("states lost", "'state'", lambda s: s.pop("state")),
    ("a list of states", "'state'", lambda s: s.update(state=[1, 2])),
    ("a state that is a list", "state 0", lambda s: s["state"].update({0: [1]})),
    ("a strange state", "key of state", lambda s: s["state"].update({9: {}})),
]


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(
    ("says", "change"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE]
)
def test_damage_is_refused_by_name_and_changes_nothing(says, change):
    saved = copy.deepcopy(trained().state_dict())
    optimizer = thinwire.AdamW([nn.Parameter(torch.zeros(s)) for s in (SHAPE, 5)])
    optimizer.load_state_dict(copy.deepcopy(saved))
    before = copy.deepcopy(optimizer.state_dict())
    assert "delivered_at" in before["state"][0]
    assert before["state"][0]["pending_decay"]
    change(saved)
    with pytest.raises(ConfigError) as caught:
        optimizer.load_state_dict(saved)
    assert says in str(caught.value)
    assert same(before, optimizer.state_dict())


@pytest.mark.parametrize("saved", [None, [], 3, {}, {1: 2}], ids=str)
def test_what_is_no_state_dict_is_refused(saved):
    with pytest.raises(ConfigError, match=r"param_groups|state dict"):
        trained().load_state_dict(saved)
