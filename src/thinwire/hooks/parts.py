"""What a state is made of: agreed on and made by all ranks together, closed by each."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import nn

from thinwire import catalog
from thinwire.collectives import RowCollective
from thinwire.groups import Counted
from thinwire.groups.one_rank import OneRank
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.agreement import compare_settings, told
from thinwire.hooks.closed import CLOSED
from thinwire.hooks.engine import Engine
from thinwire.hooks.inspection import Model, Wrapped
from thinwire.hooks.nodes import on_found_nodes, refuse_nodes
from thinwire.hooks.options import Scope, refuse_wrong, seconds
from thinwire.hooks.plain import PlainAllReduce
from thinwire.hooks.units import Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.sparse_gradients import SparseGradients
from thinwire.version import __version__


class Scaler(Protocol):
    """The method of a GradScaler that is used here."""

    def get_scale(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The model, and the settings that all ranks have."""

    wrapped: Wrapped
    reducer: Pipeline
    scope: Scope
    rows: RowCollective
    clip: float | None
    timeout: float | None

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that are reduced, by name."""
        return self.wrapped.parameters

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return next(iter(self.parameters.values())).device

    @classmethod
    def agreed(
        cls,
        model: Model,
        reducer: Pipeline,
        *,
        scope: Scope,
        sparse: str | RowCollective,
        grad_scaler: Scaler | None,
        timeout: float | timedelta | None,
        clip: float | None,
    ) -> Self:
        """Check the arguments of a state, and that all ranks have the same.

        A wrong one, any exception and a difference are errors on every rank.
        """
        with told(model.meeting):
            refuse_wrong(
                scope=scope,
                sparse=sparse,
                grad_scaler=grad_scaler,
                timeout=timeout,
                clip=clip,
            )
            wrapped = model.inspect()
            if wrapped.shards is not None:
                refuse_nodes(reducer)
            if wrapped.group is not None:
                reducer.collective.check(wrapped.group.size())
            setup = cls(
                wrapped=wrapped,
                reducer=reducer,
                scope=scope,
                rows=catalog.sparse(sparse) if isinstance(sparse, str) else sparse,
                clip=None if clip is None else float(clip),
                timeout=seconds(timeout),
            )
            if wrapped.group is None:
                return setup
            settings = setup.settings(scaled=grad_scaler is not None)
            group = TorchGroup(
                wrapped.everyone, timeout=setup.timeout, device=setup.device
            )
        compare_settings(group, settings, setup.device)
        return replace(setup, reducer=on_found_nodes(reducer, group, setup.device))

    def settings(self, *, scaled: bool) -> Mapping[str, object]:
        """The settings that must be equal on all ranks, as plain values."""
        return {
            "thinwire": __version__,
            "reducer": repr(self.reducer),
            "scope": self.scope,
            "sparse": repr(self.rows),
            "clip": self.clip,
            "grad_scaler": scaled,
            **self.wrapped.settings,
            "order of parameters": " ".join(self.parameters),
            **{
                f"parameter {name}": f"{list(p.shape)} {p.dtype}"
                for name, p in self.parameters.items()
            },
        }


class Parts:
    """A process group, what reduces over it, and its memory.

    If a rank fails to make them, every rank raises, and none keeps anything.
    """

    group: Counted
    engine: Engine
    plain: PlainAllReduce

    def __init__(self, setup: Setup) -> None:
        self.closing = ExitStack()
        wrapped = setup.wrapped
        self.everyone: TorchGroup | OneRank = OneRank()
        if wrapped.everyone is not None:
            self.everyone = self._own(wrapped.everyone, setup)
        try:
            with told(lambda: (self.everyone, setup.device)):
                self.transport = self.everyone
                if wrapped.group is not wrapped.everyone:
                    self.transport = self._of_shard(setup)
                self._build(setup)
            compare_settings(self.everyone, {}, setup.device)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release everything; for any rank alone, and any number of times."""
        self.closing.close()
        self.transport = self.everyone = self.group = self.engine = self.plain = CLOSED

    def _of_shard(self, setup: Setup) -> TorchGroup:
        """The ranks that reduce the same shard; a failure of any rank ends all."""
        group = setup.wrapped.group
        assert group is not None
        assert isinstance(self.everyone, TorchGroup)
        made = self._own(group, setup)
        made.link(self.everyone)
        made.names = dist.get_process_group_ranks(group)
        return made

    def _own(self, group: dist.ProcessGroup, setup: Setup) -> TorchGroup:
        made = TorchGroup.own(group, timeout=setup.timeout, device=setup.device)
        self.closing.callback(made.close)
        return made

    def _build(self, setup: Setup) -> None:
        wrapped, reducer = setup.wrapped, setup.reducer
        layout = Layout.of(
            (name, piece)
            for name, piece in wrapped.pieces.items()
            if name not in wrapped.rows
        )
        sparse = SparseGradients(setup.rows, reducer.seed)
        alone = self.everyone is self.transport
        self.group = Counted(self.transport, None if alone else self.everyone)
        self.engine = Engine(
            self.group,
            Units(reducer, layout, setup.device, sparse),
            wrapped.sizes,
            whole_model=setup.scope == "model",
            per_name=wrapped.per_name,
        )
        self.closing.callback(self.engine.close)
        if wrapped.shards is not None:
            self.engine.settle_at_once(wrapped.shards.units)
        # With "auto", the groups of several shards may choose differently.
        alike = alone or reducer.plain()
        self.plain = PlainAllReduce(
            self.transport,
            self.engine,
            allowed=setup.clip is None and not wrapped.rows and alike,
        )
        if wrapped.group is not None and not self.plain.fits(reducer):
            _ = self.engine.units.states  # so that a state dict has all its keys
