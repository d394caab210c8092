"""The state of a parameter in the optimizer: torch's own, or in records.

Where elements wait, momentum, energy and the step of the last delivery of each lie next
to each other in memory, because an update needs all three. `exp_avg`, `exp_avg_sq` and
`delivered_at` are then views of these records; the last one is in float32 too, as
torch's step is, exact up to 2^24. Otherwise the moments are tensors of their own.

A state dict has the same keys in both cases. `pending_decay` is None where no element
waits; `delivered_at` then has this step everywhere, and is not read.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from thinwire import kernels

State = MutableMapping[str, Any]

MOMENTS = ("exp_avg", "exp_avg_sq")
RECORDS = (*MOMENTS, "delivered_at")


def new_state(param: Tensor, *, fused: bool) -> State:
    """The state before the first step, as torch makes it, in float32."""
    device = param.device if fused else torch.device("cpu")
    step = torch.zeros((), dtype=torch.float32, device=device)
    return {"step": step, **{name: _zeros_like(param) for name in MOMENTS}}


def filled(tensor: Tensor) -> Tensor:
    """The tensor, if its elements fill a piece of memory in any order, or a copy."""
    if tensor.is_contiguous():
        return tensor
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor if tensor.permute(order).is_contiguous() else tensor.contiguous()


def in_records(param: Tensor, state: State, count: int) -> Tensor:
    """The records of a parameter, float32 and flat; makes them if there are none.

    All elements then count as delivered in step `count`.
    """
    waiting = state.get("delivered_at")
    # By rows where the parameter has gaps: such a one is updated by way of a copy.
    strides = tuple(3 * stride for stride in filled(param).stride())
    if waiting is not None and _interleaved(state, strides):
        moments: Tensor = state["exp_avg"]
        return moments.as_strided((3 * param.numel(),), (1,), moments.storage_offset())
    records = kernels.zeros(3 * param.numel(), param.device)
    old = [state[name] for name in MOMENTS]
    for offset, name in enumerate(RECORDS):
        state[name] = records.as_strided(param.shape, strides, offset)
    for name, values in zip(MOMENTS, old, strict=True):
        state[name].copy_(values)
    if waiting is None:
        state["delivered_at"].fill_(count)
    else:
        state["delivered_at"].copy_(waiting)
    return records


def as_torch(param: Tensor, state: State) -> None:
    """Give the moments tensors of their own again: no element waits."""
    for name in MOMENTS:
        state[name] = _zeros_like(param).copy_(state[name])
    for name in ("delivered_at", "pending_decay"):
        state.pop(name, None)


def saved(state: State) -> State:
    """A state as it is in a state dict; tensors share their memory."""
    if "step" not in state:
        return state
    if "delivered_at" in state:
        return {**state, "pending_decay": tuple(state.get("pending_decay", ()))}
    now = torch.full_like(state["exp_avg"], float(state["step"]))
    return {**state, "delivered_at": now, "pending_decay": None}


def loaded(param: Tensor, saved: Mapping[str, Any], step: Tensor) -> State:
    """A state of its own from one in a state dict, with everything in float32."""
    pending = saved.get("pending_decay", ())
    state: State = {"step": step}
    for name in MOMENTS if pending is None else RECORDS:
        if name in saved:
            state[name] = _zeros_like(param).copy_(saved[name])
    if pending:
        state["pending_decay"] = tuple(map(float, pending))
    if "delivered_at" in state:
        in_records(param, state, 0)
    return state


def _zeros_like(param: Tensor) -> Tensor:
    return torch.zeros_like(
        param, dtype=torch.float32, memory_format=torch.preserve_format
    )


def _interleaved(state: State, strides: tuple[int, ...]) -> bool:
    """Whether the views lie in records of these strides.

    A copy of an optimizer may have moved them, and new data of a parameter may have
    other strides.
    """
    start = state["exp_avg"].data_ptr()
    places = [state[name].data_ptr() for name in RECORDS]
    same = all(state[name].stride() == strides for name in RECORDS)
    return same and places == [start, start + 4, start + 8]
