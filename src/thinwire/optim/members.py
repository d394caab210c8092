"""The parameters of a step, and whether they are those of the last one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor

from thinwire.optim import moments
from thinwire.optim.moments import State
from thinwire.optim.rules import Cohort
from thinwire.optim.shards import any_sharded, local, state_of

Group = dict[str, Any]


@dataclass(slots=True, eq=False)
class Member:
    """A parameter that has a gradient, the one at `place` among all.

    `work` has the parameter's values, in memory without gaps, and `aligned` is None or
    takes the gradient, in the same dtype and strides. Both are the parameter's and the
    gradient's own where these fit. A sparse gradient has its own. Of `key`, the
    optimizer's parameter, `param` and `state` are this rank's shard, if it is sharded.
    """

    key: Tensor
    param: Tensor
    state: State
    group: Group
    place: int
    work: Tensor
    aligned: Tensor | None
    rows: bool
    # Where elements wait:
    count: int = field(init=False)
    records: Tensor = field(init=False)
    cohort: Cohort = field(init=False)

    def align(self, grad: Tensor) -> Tensor:
        """A copy of a gradient that does not fit."""
        assert self.aligned is not None
        return self.aligned.copy_(grad)


def members(
    groups: Sequence[Group], states: dict[Tensor, dict[str, Any]]
) -> list[Member]:
    """The parameters with a gradient; makes the states of new ones."""
    found: list[Member] = []
    for group in groups:
        for param in group["params"]:
            if param.grad is None:
                continue
            if not states[param]:
                made = moments.new_state(param, fused=bool(group["fused"]))
                states[param].update(made)
            mine, grad = local(param), local(param.grad)
            state = state_of(states[param], param)
            place, rows = len(found), grad.is_sparse
            where = place, *_aligned(mine, grad)
            found.append(Member(param, mine, state, group, *where, rows))
    return found


class Facts:
    """What a plan is made for. Loops are C's, because each step compares them.

    It follows the groups and their parameters, where these lie in memory, which of them
    have gradients, of which layout, and the tensors of all states. The values of
    tensors and the options of groups are not in it, nor where gradients lie.
    """

    def __init__(
        self, groups: Sequence[Group], states: Mapping[Tensor, dict[str, Any]]
    ) -> None:
        params = [*chain.from_iterable(group["params"] for group in groups)]
        found = [param.grad for param in params]
        mine = params
        if any_sharded(params):
            mine, found = [*map(local, params)], [*map(local, found)]
        grads = [grad for grad in found if grad is not None]
        rows = [grad.is_sparse for grad in grads]
        dense = [grad for grad in grads if not grad.is_sparse] if any(rows) else grads
        held = [*states.values()]
        tensors = chain.from_iterable(map(dict.values, held))
        self._grads = grads
        self.objects = [*groups, *params, *held, *tensors]
        self.values = (
            [len(group["params"]) for group in groups],
            [*map(Tensor.data_ptr, mine)],
            [*map(Tensor.size, mine)],
            [*map(Tensor.stride, mine)],
            [grad is None for grad in found],
            rows,
            [grad.dtype for grad in dense],
            [*map(Tensor.stride, dense)],
        )

    def take_gradients(self) -> list[Tensor]:
        """The gradients, which are not kept here."""
        grads, self._grads = self._grads, []
        return grads

    def same(self, other: "Facts") -> bool:
        """Whether a plan for one is one for the other."""
        mine, others = self.objects, other.objects
        if len(mine) != len(others) or not all(map(is_, mine, others)):
            return False
        return self.values == other.values


def _aligned(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    if grad.is_sparse:
        return moments.filled(param), None
    if grad.dtype == param.dtype and param.is_contiguous() and grad.is_contiguous():
        return param, None
    work = moments.filled(param)
    if grad.dtype == param.dtype and grad.stride() == work.stride():
        return work, None
    return work, torch.empty_like(work)
