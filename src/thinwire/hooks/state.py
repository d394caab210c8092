"""State: a reducer for one model, whatever it is wrapped in.

`hooks.ddp` has the one for DistributedDataParallel. It says when gradients are reduced;
what is kept between steps, saved and reported is here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from torch import Tensor

from thinwire.collectives.nodes import INSIDE
from thinwire.cost import ring_all_reduce
from thinwire.errors import AgreementError, ConfigError
from thinwire.hooks import agreement, all_ranks, checkpoint, saved_state
from thinwire.hooks.all_ranks import AllRanks
from thinwire.hooks.backward_pass import Deliveries
from thinwire.hooks.closed import CLOSED
from thinwire.hooks.loading import PathLike, Source, load_together, open_source
from thinwire.hooks.metrics import metrics_of, summary_of
from thinwire.hooks.parts import Parts, Scaler, Setup
from thinwire.hooks.passes import Passes
from thinwire.hooks.place import Place
from thinwire.hooks.progress_check import ProgressCheck
from thinwire.hooks.saved_state import LoadOptions, Missing, Residual
from thinwire.hooks.saving import Save
from thinwire.reducers import Pipeline
from thinwire.reducers.flush import Trained, drop_nonfinite_rows_, flush_

logger = logging.getLogger(__name__)


class State:
    """What `thinwire.attach` returns: saves, loads, flushes and reports.

    The methods may be called between backward passes, those that communicate by all
    ranks together.
    """

    def __init__(self, setup: Setup, scaler: Scaler | None) -> None:
        self._scope, self._reducer, self._scaler = setup.scope, setup.reducer, scaler
        self._parameters, self._device = setup.parameters, setup.device
        self._trained: Mapping[str, Trained] = setup.parameters
        self._parts = parts = Parts(setup)
        self._shards = setup.wrapped.shards
        self._transport, self._group = parts.everyone, parts.group
        self._engine, self._plain = parts.engine, parts.plain
        self._passes = Passes(
            self._engine,
            self._plain,
            self._transport,
            check=self._compare_checkpoints,
            clip=setup.clip,
        )
        self.on_close(self._passes.close)
        self._place = Place(self._group.rank, self._group.size)
        if self._shards is not None:
            self._place = self._shards.place
        # What dense all-reduces in a step: all but rows.
        names = self._engine.units.layout.names
        self._nbytes = sum(setup.wrapped.pieces[name].nbytes for name in names)
        self._compared = self._loaded = False
        # The pass after which nothing was left in any residual.
        self._flushed_after: int | None = None
        if self._transport.rank == 0:
            size = self._transport.size
            logger.info("%s on %d ranks, scope %r", setup.reducer, size, setup.scope)

    def close(self) -> None:
        """Release residuals, thread and process group; later backward passes raise.

        Any rank may close alone, and twice. What waits in the residuals is lost: call
        `flush` before the last optimizer step to apply it. `with` closes at its end.
        """
        self._parts.close()
        self._engine = self._plain = self._group = self._transport = CLOSED

    def on_close(self, call: Callable[[], object]) -> None:
        """Call this when the state is closed."""
        self._parts.closing.callback(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            # A number of numpy's would not load with weights_only.
            **({} if density is None else {"density": float(density)}),
            "passes": self._engine.passes,
            "flushed": flushed or not units.has_states,
        }
        return {"version": saved_state.FORMAT, self._place.key: entries}

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

    @property
    def all_ranks(self) -> AllRanks:
        """This state with those of all ranks, for what saves rank 0's objects only."""
        if self._shards is not None:
            raise ConfigError(
                "all_ranks is not for a sharded model: call state.save(folder), or "
                "give state.state_dict() to torch.distributed.checkpoint, on all ranks"
            )

        def collect() -> dict[str, Any]:
            group, units = self._transport, self._engine.units
            return all_ranks.collect(self.state_dict, units, group, self._device)

        return AllRanks(collect, self.load_state_dict)

    def save(self, folder: PathLike, also: Mapping[str, Any] | None = None) -> None:
        """Save to a folder that all ranks share, on all ranks together.

        `also` of rank 0 is saved with it: the model, the optimizer, the step. When this
        returns, the save is complete and older ones are gone; one that is cut is never
        loaded.
        """
        self._engine.drain()
        norms = checkpoint.norms(self._engine.units)
        save = Save(folder, self._transport, self._device, self._place)
        save.run(self.state_dict(), norms, {} if also is None else also)

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

        def open_() -> Source | None:
            skip = missing == "drop"
            return open_source(path, self._place, skip=skip, required=required)

        source = self._load(open_, residual, missing)
        return None if source is None else source.also

    def _load(
        self, open_: Callable[[], Source | None], residual: Residual, missing: Missing
    ) -> Source | None:
        self._engine.drain()
        units, options = self._engine.units, LoadOptions(residual, missing)
        found = load_together(
            open_, units, options, self._shards or self._place, group=self._transport
        )
        if found is None:
            return None
        source, saved = found
        density = saved.entries.density
        if density is not None and self._reducer.collective.density is not None:
            self._reducer = _with_density(self._reducer, density)
        checkpoint.fill(units, saved, scope=self._scope)
        if self._shards is not None:
            self._engine.settle_at_once(self._shards.units)
        self._engine.restart(saved.entries.passes)
        self._compared, self._loaded = False, True
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
                        self._trained,
                        self._group,
                        scale=scale,
                        finite=engine.finite,
                    )
        if not engine.finite:
            drop_nonfinite_rows_(self._trained.values())
        units.sparse.forget()
        engine.delivered = Deliveries()
        if self._plain.always_fits(self._reducer):
            units.forget()
        # A parameter that was frozen meanwhile keeps its residual.
        names = units.layout.names
        if all(self._parameters[name].requires_grad for name in names):
            self._flushed_after = engine.passes

    @property
    def leads(self) -> bool:
        """Whether this is the rank that warns."""
        return self._transport.rank == 0

    @property
    def starts_anew(self) -> bool:
        """Whether residuals could have been loaded, and nothing was."""
        return not self._loaded and bool(self._engine.units.kinds)

    def watch_progress(self) -> None:
        """Warn once if training does not get ahead (see `hooks.progress_check`)."""
        momentum = getattr(self._reducer.feedback, "momentum", 0.0)
        self._engine.progress = ProgressCheck(momentum)

    def check_replicas(self) -> None:
        """Compare checksums of the parameters over all ranks; raise if they differ."""
        self._engine.drain()
        agreement.compare_replicas(
            self._transport, self._held(), self._device, shards=self._place.shards
        )

    def _held(self) -> Mapping[str, Tensor]:
        """What this rank has of every parameter now."""
        return self._parameters

    @property
    def density(self) -> float | None:
        """The fraction kept. Set it on every rank before the same step."""
        return self._reducer.collective.density

    @density.setter
    def density(self, density: float) -> None:
        reducer = _with_density(self._reducer, density)
        unchecked = reducer.on_nonfinite == "unchecked"
        if unchecked or self._shards or self._plain.fits(self._reducer):
            # There is no guard that would notice a difference, or not everywhere at the
            # same time: compare now.
            self._engine.drain()
            given = float(density)  # JSON has no numbers of numpy's
            densities = agreement.gather_json(
                self._transport, given, self._device, call="set density"
            )
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
        `wait_ms` in the group, `encode_ms` in the codec, the others in kernels. The
        keys are those of docs/guides/monitor.md.
        """
        self._engine.drain()
        traffic = self._group.traffic + self._plain.traffic
        dense = ring_all_reduce(self._nbytes, self._group.size).nbytes
        return metrics_of(
            self._engine,
            traffic,
            self.density,
            inside=self._group.traffic_of(INSIDE),
            dense_bytes=dense,
        )

    def summary(self) -> str:
        """One line for people: whether this is faster than dense, and by how much."""
        return summary_of(self.metrics())

    def _compare_checkpoints(self) -> None:
        """Check in the first pass, and after a load, that ranks continue together."""
        if not self._compared:
            common, partial = checkpoint.comparable(
                self._engine.units, self._engine.passes, self._place
            )
            agreement.compare_settings(
                self._transport,
                common,
                self._device,
                partial=partial,
                call="backward",
            )
            self._compared = True

    def _scale(self) -> float:
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if not 0.0 < scale < float("inf"):
            raise ConfigError(f"the loss scale is {scale}: it must be finite, above 0")
        return scale


def _with_density(reducer: Pipeline, density: float) -> Pipeline:
    return replace(reducer, collective=reducer.collective.with_density(density))
