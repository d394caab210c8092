"""The communication hook for DistributedDataParallel, and its public state.

    state = DDPState(model, reducer)
    model.register_comm_hook(state, hook)

`thinwire.attach` does both from names. Reductions run on a background thread with a
process group of its own, in parallel with the backward pass (see `hooks.engine`). Their
errors are raised from `backward`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import GatherRows, RowCollective
from thinwire.errors import AgreementError, ConfigError
from thinwire.groups import Counted
from thinwire.groups.torch import TorchGroup
from thinwire.hooks import agreement, checkpoint, saved_state
from thinwire.hooks.backward_pass import Deliveries
from thinwire.hooks.bucket_contents import BucketContents
from thinwire.hooks.clipping import checked_clip
from thinwire.hooks.engine import Engine
from thinwire.hooks.inspection import (
    check_model,
    raise_everywhere,
    settings_of,
    sparse_names,
    trained_parameters,
)
from thinwire.hooks.loading import PathLike, Source, load_together, open_source
from thinwire.hooks.metrics import metrics_of
from thinwire.hooks.passes import Passes
from thinwire.hooks.plain import PlainAllReduce
from thinwire.hooks.progress_check import ProgressCheck
from thinwire.hooks.saved_state import LoadOptions, Missing, Residual
from thinwire.hooks.saving import Save
from thinwire.hooks.units import Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.flush import drop_nonfinite_rows_, flush_
from thinwire.reducers.sparse_gradients import SparseGradients

logger = logging.getLogger(__name__)

Scope = Literal["bucket", "model"]


class Scaler(Protocol):
    """The method of a GradScaler that is used here."""

    def get_scale(self) -> float: ...


def hook(state: "DDPState", bucket: GradBucket) -> Future[Tensor]:
    """Reduce a bucket: DDP calls this with every bucket of a backward pass."""
    return state.reduce(bucket)


class DDPState:
    """A reducer for one DDP model.

    All ranks construct it together. They compare their settings; a difference is an
    error on every rank, and nothing has changed. The methods may be called between
    backward passes, those that communicate by all ranks together.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        reducer: Pipeline,
        *,
        scope: Scope = "bucket",
        sparse: RowCollective = GatherRows(),  # noqa: B008 - it is frozen
        grad_scaler: Scaler | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        clip: float | None = None,
    ) -> None:
        parent = process_group or model.process_group
        try:
            check_model(model, sparse)
            if scope not in get_args(Scope):
                raise ConfigError(f"scope is {scope!r}: choose 'bucket' or 'model'")
            reducer.collective.check(parent.size())
            clip = checked_clip(clip)
        except ConfigError as problem:
            raise_everywhere(problem, model, parent)
        self._scope = scope
        self._parameters = trained_parameters(model)
        self._device = device = next(iter(self._parameters.values())).device
        self._reducer = reducer
        self._scaler = grad_scaler
        scaled = grad_scaler is not None
        settings = settings_of(model, reducer, scope, sparse, scaled=scaled)
        group = TorchGroup(parent, timeout=timeout, device=device)
        agreement.compare_settings(group, {**settings, "clip": clip}, device)
        self._transport = TorchGroup.own(parent, timeout=timeout, device=device)
        self._group = Counted(self._transport)
        self._engine = self._new_engine(model, SparseGradients(sparse, reducer.seed))
        self._plain = PlainAllReduce(
            self._transport,
            self._engine,
            allowed=clip is None and not sparse_names(model.module),
        )
        self._passes = Passes(
            self._engine,
            self._plain,
            BucketContents(model),
            check=self._compare_checkpoints,
            clip=clip,
        )
        self._compared = False
        # The pass after which nothing was left in any residual.
        self._flushed_after: int | None = None
        if not self._plain.fits(reducer):
            _ = self._engine.units.states  # so that a state dict has all its keys
        if self._group.rank == 0:
            logger.info("%s on %d ranks, scope %r", reducer, self._group.size, scope)

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket of a backward pass; return the future of its mean."""
        if bucket.index() == 0:
            self._passes.begin(self._reducer, self._scale)
        return self._passes.take(bucket)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors (sharing memory) and scalars, for `torch.save`.

        Save it on every rank, each in a file of its own, because residuals differ.
        After `flush()`, rank 0's state serves all ranks.
        """
        self._engine.drain()
        units, density = self._engine.units, self._reducer.collective.density
        flushed = self._flushed_after == self._engine.passes
        entries = {
            **checkpoint.dump(units),
            "scope": self._scope,
            **({} if density is None else {"density": density}),
            "passes": self._engine.passes,
            "flushed": flushed or not units.has_states,
        }
        key = saved_state.key_of(self._group.rank, self._group.size)
        return {"version": saved_state.FORMAT, key: entries}

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        *,
        residual: Residual = "keep",
        missing: Missing = "error",
    ) -> None:
        """Continue from what `state_dict` returned, on all ranks together.

        Give each rank its own, or, if the number of ranks has changed, a dict with the
        entries of all. `residual="drop"` accepts those of any rank and starts without
        residuals; `missing="drop"` goes on without the entries that are not there. If
        it fails on one rank it raises on all, and nothing has changed.
        """
        self._load(lambda: Source(state_dict), residual, missing)

    def save(self, folder: PathLike, also: Mapping[str, Any] | None = None) -> None:
        """Save to a folder that all ranks share, on all ranks together.

        `also` of rank 0 is saved with it: the model, the optimizer, the step. When this
        returns, the save is complete and older ones are gone; one that is cut is never
        loaded.
        """
        self._engine.drain()
        norms = checkpoint.norms(self._engine.units)
        save = Save(Path(folder), self._transport, self._device)
        save.run(self.state_dict(), norms, also or {})

    def load(
        self,
        path: PathLike | Sequence[PathLike],
        *,
        residual: Residual = "keep",
        missing: Missing = "error",
        required: bool = True,
    ) -> dict[str, Any] | None:
        """Continue from a save, on all ranks together; returns its `also`.

        `path` is a folder that `save` or torch.distributed.checkpoint has written, or a
        list of the files with the state dicts of all ranks. The number of ranks may be
        another one. None if a folder has no complete save and none is `required`.
        """
        rank, size = self._group.rank, self._group.size

        def open_() -> Source | None:
            skip = missing == "drop"
            return open_source(path, rank, size, skip=skip, required=required)

        source = self._load(open_, residual, missing)
        return None if source is None else source.also

    def _load(
        self, open_: Callable[[], Source | None], residual: Residual, missing: Missing
    ) -> Source | None:
        self._engine.drain()
        units, options = self._engine.units, LoadOptions(residual, missing)
        found = load_together(
            open_, units, options, group=self._transport, device=self._device
        )
        if found is None:
            return None
        source, saved = found
        density = saved.entries.density
        if density is not None and self._reducer.collective.density is not None:
            self._reducer = _with_density(self._reducer, density)
        checkpoint.fill(units, saved, scope=self._scope)
        self._engine.restart(saved.entries.passes)
        self._compared = False
        flushed = saved.entries.flushed or residual == "drop"
        self._flushed_after = self._engine.passes if flushed else None
        return source

    def flush(self) -> None:
        """Add the mean of every residual to `.grad`, and forget all that is remembered.

        That takes one dense all-reduce, by all ranks together: right after the last
        `backward`, before the optimizer steps (and before a GradScaler unscales); or
        before a change of method or of the number of ranks.
        """
        self._engine.drain()
        engine, units, scale = self._engine, self._engine.units, self._scale()
        if units.has_states:
            with engine.exclusive():
                for state in units.states:
                    flush_(
                        state,
                        self._parameters,
                        self._group,
                        scale=scale,
                        finite=engine.finite,
                    )
        if not engine.finite:
            drop_nonfinite_rows_(self._parameters.values())
        units.sparse.forget()
        engine.delivered = Deliveries()
        if self._plain.always_fits(self._reducer):
            units.forget()
        # A parameter that was frozen meanwhile keeps its residual.
        names = units.layout.names
        if all(self._parameters[name].requires_grad for name in names):
            self._flushed_after = engine.passes

    def watch_progress(self) -> None:
        """Warn once if training does not get ahead (see `hooks.progress_check`)."""
        momentum = getattr(self._reducer.feedback, "momentum", 0.0)
        self._engine.progress = ProgressCheck(momentum)

    def check_replicas(self) -> None:
        """Compare checksums of the parameters over all ranks; raise if they differ."""
        self._engine.drain()
        agreement.compare_replicas(self._transport, self._parameters, self._device)

    @property
    def density(self) -> float | None:
        """The fraction kept. Set it on every rank before the same step."""
        return self._reducer.collective.density

    @density.setter
    def density(self, density: float) -> None:
        reducer = _with_density(self._reducer, density)
        if self._plain.fits(self._reducer) or reducer.on_nonfinite == "unchecked":
            # There is no guard that would notice a difference: compare now.
            self._engine.drain()
            densities = agreement.gather_json(self._transport, density, self._device)
            if any(other != densities[0] for other in densities):
                raise AgreementError(f"ranks set different densities: {densities}")
        self._reducer = reducer

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters that were trained when the model was wrapped, by name."""
        return self._parameters

    def deliveries(self) -> Deliveries:
        """Which elements the last backward pass, or `flush`, delivered."""
        return self._engine.deliveries()

    def metrics(self) -> dict[str, float]:
        """Counters since this state was made, as plain floats.

        Bytes and rounds are this rank's; milliseconds are of the communication thread:
        `wait_ms` in the group, `encode_ms` in the codec, the others in kernels.
        """
        self._engine.drain()
        traffic = self._group.traffic + self._plain.traffic
        return metrics_of(self._engine, traffic, self.density)

    def _new_engine(
        self, model: DistributedDataParallel, sparse: SparseGradients
    ) -> Engine:
        rows = sparse_names(model.module)
        layout = Layout.of((n, p) for n, p in self._parameters.items() if n not in rows)
        return Engine(
            self._group,
            Units(self._reducer, layout, self._device, sparse),
            # All parameters: one that was frozen after wrapping is still in a bucket.
            {name: p.numel() for name, p in model.module.named_parameters()},
            whole_model=self._scope == "model",
            per_name=bool(model.find_unused_parameters or model.static_graph),
        )

    def _compare_checkpoints(self) -> None:
        """Check in the first pass, and after a load, that ranks continue together."""
        if not self._compared:
            common, partial = checkpoint.comparable(
                self._engine.units, self._engine.passes
            )
            agreement.compare_settings(
                self._transport, common, self._device, partial=partial
            )
            self._compared = True

    def _scale(self) -> float:
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if not 0.0 < scale < float("inf"):
            raise ConfigError(f"the loss scale is {scale}: it must be finite, above 0")
        return scale


def _with_density(reducer: Pipeline, density: float) -> Pipeline:
    return replace(reducer, collective=reducer.collective.with_density(density))
