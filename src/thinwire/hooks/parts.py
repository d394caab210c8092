"""What a state is made of: agreed on and made by all ranks together, closed by each."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import catalog
from thinwire.collectives import RowCollective
from thinwire.groups import Counted
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.agreement import compare_settings, told
from thinwire.hooks.closed import CLOSED
from thinwire.hooks.engine import Engine
from thinwire.hooks.inspection import (
    check_model,
    meeting,
    settings_of,
    sparse_names,
    trained_parameters,
)
from thinwire.hooks.options import Scope, refuse_wrong, seconds
from thinwire.hooks.plain import PlainAllReduce
from thinwire.hooks.units import Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.sparse_gradients import SparseGradients


class Scaler(Protocol):
    """The method of a GradScaler that is used here."""

    def get_scale(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The model, and the settings that all ranks have."""

    model: DistributedDataParallel
    reducer: Pipeline
    scope: Scope
    rows: RowCollective
    clip: float | None
    parent: dist.ProcessGroup
    timeout: float | None
    parameters: Mapping[str, nn.Parameter]
    device: torch.device

    @classmethod
    def agreed(
        cls,
        model: DistributedDataParallel,
        reducer: Pipeline,
        *,
        scope: Scope,
        sparse: str | RowCollective,
        grad_scaler: Scaler | None,
        process_group: dist.ProcessGroup | None,
        timeout: float | timedelta | None,
        clip: float | None,
    ) -> Self:
        """Check the arguments of a `DDPState`, and that all ranks have the same.

        A wrong one, any exception and a difference are errors on every rank.
        """
        with told(lambda: meeting(model, process_group)):
            refuse_wrong(
                scope=scope,
                sparse=sparse,
                grad_scaler=grad_scaler,
                process_group=process_group,
                timeout=timeout,
                clip=clip,
            )
            check_model(model)
            parent = process_group or model.process_group
            reducer.collective.check(parent.size())
            parameters = trained_parameters(model)
            setup = cls(
                model=model,
                reducer=reducer,
                scope=scope,
                rows=catalog.sparse(sparse) if isinstance(sparse, str) else sparse,
                clip=None if clip is None else float(clip),
                parent=parent,
                timeout=seconds(timeout),
                parameters=parameters,
                device=next(iter(parameters.values())).device,
            )
            scaled = grad_scaler is not None
            settings = settings_of(model, reducer, scope, setup.rows, scaled=scaled)
            group = TorchGroup(parent, timeout=setup.timeout, device=setup.device)
        compare_settings(group, {**settings, "clip": setup.clip}, setup.device)
        return setup


class Parts:
    """A process group, what reduces over it, and its memory.

    If a rank fails to make them, every rank raises, and none keeps anything.
    """

    group: Counted
    engine: Engine
    plain: PlainAllReduce

    def __init__(self, setup: Setup) -> None:
        self.closing = ExitStack()
        self.transport = TorchGroup.own(
            setup.parent, timeout=setup.timeout, device=setup.device
        )
        self.closing.callback(self.transport.close)
        try:
            with told(lambda: (self.transport, setup.device)):
                self._build(setup)
            compare_settings(self.transport, {}, setup.device)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release everything; for any rank alone, and any number of times."""
        self.closing.close()
        self.transport = self.group = self.engine = self.plain = CLOSED

    def _build(self, setup: Setup) -> None:
        model, reducer = setup.model, setup.reducer
        rows = sparse_names(model.module)
        trained = setup.parameters.items()
        layout = Layout.of((name, p) for name, p in trained if name not in rows)
        sparse = SparseGradients(setup.rows, reducer.seed)
        self.group = Counted(self.transport)
        self.engine = Engine(
            self.group,
            Units(reducer, layout, setup.device, sparse),
            # All parameters: one that was frozen after wrapping is still in a bucket.
            {name: p.numel() for name, p in model.module.named_parameters()},
            whole_model=setup.scope == "model",
            per_name=bool(model.find_unused_parameters or model.static_graph),
        )
        self.closing.callback(self.engine.close)
        self.plain = PlainAllReduce(
            self.transport, self.engine, allowed=setup.clip is None and not rows
        )
        if not self.plain.fits(reducer):
            _ = self.engine.units.states  # so that a state dict has all its keys
