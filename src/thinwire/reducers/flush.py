"""Flush: delivers the residual of a unit to `.grad`, by one dense all-reduce."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from thinwire.groups import Group, Op
from thinwire.reducers.pipeline import UnitState


class Trained(Protocol):
    """What is needed of a parameter, or of this rank's shard of one."""

    grad: Tensor | None

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def requires_grad(self) -> bool: ...


@torch.no_grad()
def flush_(
    state: UnitState,
    parameters: Mapping[str, Trained],
    group: Group,
    *,
    scale: float,
    finite: bool,
) -> None:
    """Add the mean of the residual to `.grad` and forget everything else.

    `scale` is the loss scale of the gradients. If they are not `finite`, the mean
    replaces the gradients that have an infinity or a NaN. A frozen parameter keeps its
    mean as residual.
    """
    if state.memory.saved:  # otherwise `x` is scratch space, and there is no residual
        x = state.memory.x.whole()
        group.all_reduce_((x, Op.SUM))
        x.div_(group.size)
        state.memory.rescale_(scale)
        for name, mean in state.layout.views(x).items():
            if parameters[name].requires_grad:
                _add_mean(parameters[name], mean, finite=finite)
                mean.zero_()
        for vector in state.memory.saved.values():
            if vector is not state.memory.x:
                vector.zero_()
    state.collective_memory.load_dict({})


def _add_mean(parameter: Trained, mean: Tensor, *, finite: bool) -> None:
    grad = parameter.grad
    if grad is None or not (finite or bool(grad.isfinite().all())):
        parameter.grad = torch.empty_like(mean, dtype=parameter.dtype).copy_(mean)
    else:
        grad.add_(mean)


def drop_nonfinite_rows_(parameters: Iterable[Trained]) -> None:
    """Drop sparse gradients of a step that is not finite: they have no residual."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.is_sparse:
            finite = grad.coalesce().values().isfinite().all()
            parameter.grad = grad if bool(finite) else None
