"""A state where there is one process: a script runs on a laptop as it is.

Gradients are whole and nobody else has any, so nothing is reduced, and the methods of
the state have nothing to wait for. A residual that comes from a save of more processes
is kept, delivered by `flush`, and saved again.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from thinwire.errors import ConfigError
from thinwire.hooks import checkpoint
from thinwire.hooks.clipping import clip_
from thinwire.hooks.inspection import LocalModel, is_sharded
from thinwire.hooks.loading import Source
from thinwire.hooks.parts import Scaler, Setup
from thinwire.hooks.saved_state import Missing, Residual
from thinwire.hooks.state import State
from thinwire.hooks.user_warnings import warn
from thinwire.reducers import Pipeline


class OneProcessState(State):
    """A state that reduces nothing; `clip` clips before an optimizer's step."""

    def __init__(
        self,
        model: nn.Module,
        reducer: Pipeline,
        *,
        grad_scaler: Scaler | None,
        clip: float | None,
        warns: bool,
        **options: Any,
    ) -> None:
        setup = Setup.agreed(
            LocalModel(model), reducer, grad_scaler=grad_scaler, clip=clip, **options
        )
        super().__init__(setup, grad_scaler)
        self._warns = warns
        self._engine.kept = 1.0
        if setup.clip is not None:
            self.on_close(clip_before_steps(model, self._parameters, setup.clip))
        momentum = getattr(reducer.feedback, "momentum", 0.0)
        if warns and momentum:
            warn(
                "there is one process, so thinwire does nothing here, and the momentum "
                f"of {reducer.feedback} is not applied: give it to the optimizer, or "
                "wrap the model in DistributedDataParallel"
            )

    def flush(self) -> None:
        # No pass has looked at the gradient. One that is not finite is dropped as a
        # whole, as ranks do: the optimizer would not step, and the residual be lost.
        if self._engine.units.has_states and not self._has_finite_gradient():
            for parameter in self._parameters.values():
                parameter.grad = None
        super().flush()

    def _has_finite_gradient(self) -> bool:
        grads = [p.grad for p in self._parameters.values() if p.grad is not None]
        values = [
            grad.coalesce().values() if grad.is_sparse else grad for grad in grads
        ]
        return all(bool(each.isfinite().all()) for each in values)

    def _load(
        self,
        open_: Callable[[], Source | None],
        residual: Residual,
        missing: Missing,
    ) -> Source | None:
        source = super()._load(open_, residual, missing)
        norm = checkpoint.norms(self._engine.units).get("residual", 0.0)
        if norm > 0 and self._warns:
            warn(
                "there is one process, which delivers no residual by itself. The one "
                f"that was loaded, of norm {norm:.4g}, is kept and saved again; call "
                "state.flush() after a backward pass to apply it at once, or load with "
                "residual='drop'"
            )
        return source


def in_one_process(model: object) -> bool:
    """Whether a model that is not wrapped needs to be: not if there is one process."""
    if not isinstance(model, nn.Module) or is_sharded(model):
        return False
    if isinstance(model, DistributedDataParallel):
        return False
    if dist.is_initialized():
        return dist.get_world_size() == 1
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1"):
        raise ConfigError(
            f"WORLD_SIZE is {started} and torch.distributed is not initialized: call "
            "torch.distributed.init_process_group() and wrap the model, model = "
            "DDP(model), and then attach"
        )
    return True


def clip_before_steps(
    model: nn.Module, parameters: Mapping[str, Tensor], clip: float
) -> Callable[[], None]:
    """Clip the model's gradient before every step of its optimizers; returns the end.

    As long as the model lives, which this does not keep alive.
    """
    reference = weakref.ref(model)
    names = sorted(parameters)
    watched = {name: weakref.ref(parameters[name]) for name in names}
    ids = frozenset(map(id, parameters.values()))

    def before_step(optimizer: Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        if reference() is None or not any(
            id(p) in ids for g in groups for p in g["params"]
        ):
            return
        pieces = []
        for name in names:
            parameter = watched[name]()
            if parameter is None or parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                pieces.append(parameter.grad.values())
            else:
                pieces.append(parameter.grad)
        # A GradScaler leaves it to some optimizers to unscale.
        scale = getattr(optimizer, "grad_scale", None)
        clip_(pieces, clip, 1.0 if scale is None else float(scale))

    remove = register_optimizer_step_pre_hook(before_step).remove
    weakref.finalize(model, remove)
    return remove
