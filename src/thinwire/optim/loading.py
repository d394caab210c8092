"""Checks of an optimizer's state dict, all of them before anything is loaded."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.layout import DTYPES
from thinwire.optim.moments import MOMENTS
from thinwire.optim.rules import LONGEST_DECAY
from thinwire.optim.shards import local, locals_of
from thinwire.saved_values import damaged, flag, integer, mapping, number, tensor


def check(saved: object, groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state dict that is damaged, or of other parameters than `groups`."""
    saved = mapping(saved, "state dict")
    found, states = saved.get("param_groups"), saved.get("state")
    if not isinstance(found, list):
        raise damaged("param_groups", found, "a list")
    if not isinstance(states, Mapping):
        raise damaged("state", states, "a dict")
    sizes = [_check_group(group) for group in found]
    wanted = [len(group["params"]) for group in groups]
    if sizes != wanted:
        raise ConfigError(
            f"a state dict of another optimizer: its groups have {sizes} parameters, "
            f"here they have {wanted}"
        )
    params = chain.from_iterable(group["params"] for group in groups)
    ids = chain.from_iterable(group["params"] for group in found)
    known = dict(zip(ids, params, strict=False))
    if len(known) < sum(sizes):
        raise ConfigError("a damaged state dict: its 'params' name a parameter twice")
    for name, state in states.items():
        if name not in known:
            raise damaged("key of state", name, "that of a parameter")
        if state:
            where = f"state {name}"
            held = locals_of(mapping(state, where))
            _check_state(held, local(known[name]), where)


def _check_group(value: object) -> int:
    """The number of parameters in a group."""
    group = mapping(value, "param_groups")
    for name in ("lr", "eps", "weight_decay"):
        number(group.get(name), name)
    _check_betas(group.get("betas"))
    flag(group.get("maximize", False), "maximize")
    for name in ("foreach", "fused"):
        if group.get(name) is not None:
            flag(group[name], name)
    params = group.get("params")
    if not isinstance(params, list):
        raise damaged("params", params, "a list of numbers")
    for each in params:
        if not isinstance(each, str):  # torch.distributed.checkpoint gives names
            integer(each, "params")
    return len(params)


def _check_betas(betas: object) -> None:
    if not isinstance(betas, list | tuple) or len(betas) != 2:  # noqa: PLR2004 - two
        raise damaged("betas", betas, "two numbers")
    for beta in betas:
        if number(beta, "betas", most=1.0) == 1.0:
            raise damaged("betas", beta, "below 1")


def _check_state(value: object, param: Tensor, where: str) -> None:
    state = mapping(value, where)
    step = number(state.get("step"), f"step of {where}")
    if step != int(step):
        raise damaged(f"step of {where}", step, "a whole number")
    for name in MOMENTS:
        tensor(state.get(name), f"{name} of {where}", param.shape, DTYPES)
    _refuse_below_zero(state["exp_avg_sq"], f"exp_avg_sq of {where}")
    waiting = state.get("delivered_at")
    if waiting is not None:
        field = f"delivered_at of {where}"
        tensor(waiting, field, param.shape, (torch.float32,))
        _refuse_below_zero(waiting, field)
        if bool((waiting > step).any()) or bool((waiting != waiting.floor()).any()):
            raise damaged(field, "not steps", f"whole numbers up to the step {step:g}")
    pending = state.get("pending_decay") or ()
    if not isinstance(pending, list | tuple) or len(pending) > LONGEST_DECAY:
        want = f"at most {LONGEST_DECAY} numbers"
        raise damaged(f"pending_decay of {where}", pending, want)
    for factor in pending:
        number(factor, f"pending_decay of {where}", least=float("-inf"))


def _refuse_below_zero(values: Tensor, field: str) -> None:
    if bool((values < 0).any()):
        raise damaged(field, "negative", "zero or more")
