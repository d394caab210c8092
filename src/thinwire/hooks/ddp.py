"""The DDP communication hook: one reducer behind DistributedDataParallel.

    state = State(model, reducer)
    model.register_comm_hook(state, hook)

`thinwire.attach` does both from names. Communication runs on one background thread
with a process group of its own, so that it overlaps with the backward pass; a failure
there is raised from `backward`, with its own type.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NoReturn, Protocol, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.codecs import Timed
from thinwire.collectives import Dense, GatherRows, RowCollective
from thinwire.cost import ring_all_reduce
from thinwire.errors import (
    AgreementError,
    ConfigError,
    GroupError,
    PeerError,
    ThinwireError,
)
from thinwire.feedback import Forget, Residual
from thinwire.groups import Counted, Op, Traffic
from thinwire.groups.torch import TorchGroup
from thinwire.hooks import agreement, checkpoint
from thinwire.hooks.backward import Arrival
from thinwire.hooks.engine import Engine
from thinwire.hooks.inspection import (
    check_model,
    settings_of,
    sparse_names,
    trained_parameters,
)
from thinwire.hooks.metrics import metrics_of
from thinwire.hooks.rows import SparseGradients
from thinwire.hooks.units import Names, Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers import State as UnitState

logger = logging.getLogger(__name__)

Scope = Literal["bucket", "model"]


class Scaler(Protocol):
    """The part of a GradScaler that matters here."""

    def get_scale(self) -> float: ...


def hook(state: "State", bucket: GradBucket) -> Future[Tensor]:
    """The function that DDP calls with every bucket."""
    return state.arrive(bucket)


def report(
    problem: ConfigError,
    model: DistributedDataParallel,
    process_group: dist.ProcessGroup | None = None,
) -> NoReturn:
    """Raise a problem on every rank, where the others construct their `State`."""
    device = next(model.parameters()).device
    group = TorchGroup(process_group or model.process_group, device=device)
    agreement.compare_settings(group, {}, problem, device)
    raise problem


class State:
    """A reducer at work for one DDP model, and what its user may ask of it.

    All ranks construct it together; they compare settings, and a difference is an
    error on every one of them before anything has changed.
    """

    _compared = False
    _bare = False
    _direct = False

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
    ) -> None:
        try:
            check_model(model, sparse)
            if scope not in get_args(Scope):
                raise ConfigError(f"scope is {scope!r}: choose 'bucket' or 'model'")
            reducer.collective.check((process_group or model.process_group).size())
        except ConfigError as problem:
            # The other ranks are about to compare settings: tell them.
            report(problem, model, process_group)
        self._process_group = process_group or model.process_group
        self._scope = scope
        self._parameters = trained_parameters(model)
        self._device = next(iter(self._parameters.values())).device
        self._reducer = reducer
        self._scaler = grad_scaler
        agreement.compare_settings(
            TorchGroup(self._process_group, timeout=timeout, device=self._device),
            {
                **settings_of(model, reducer, scope, scaled=grad_scaler is not None),
                "sparse": repr(sparse),
            },
            None,
            self._device,
        )
        rows = sparse_names(model.module)
        self._has_rows = bool(rows)
        layout = Layout.of((n, p) for n, p in self._parameters.items() if n not in rows)
        self._transport = TorchGroup.own(
            self._process_group, timeout=timeout, device=self._device
        )
        self._group = Counted(self._transport)
        self._engine = Engine(
            self._group,
            Units(reducer, layout, self._device, SparseGradients(sparse, reducer.seed)),
            {name: p.numel() for name, p in model.module.named_parameters()},
            whole_model=scope == "model",
            per_name=bool(model.find_unused_parameters or model.static_graph),
        )
        # All of them: one that was frozen after wrapping is still in a bucket.
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._bucket_names: dict[tuple[int, ...], Names] = {}
        self._in_backward = True
        self._refusal: ThinwireError | None = None
        self._direct_traffic = Traffic()
        self._flushed = False
        if not self._may_be_direct:
            _ = self._engine.units.states  # a state dict then has all its keys at once
        if self._group.rank == 0:
            logger.info("%s on %d ranks, scope %r", reducer, self._group.size, scope)

    def arrive(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket from DDP and promise its mean."""
        if bucket.index() == 0:
            self._start()
        if bucket.is_last() and self._in_backward:
            # With the last bucket, as DDP does: the first may come in a nested pass.
            _at_end_of_backward(self._raise_error)
        arrival = Arrival(
            self._names_in(bucket),
            bucket.buffer(),
            last=bucket.is_last(),
            future=Future(devices=self._future_devices),
            ready=self._event(),
        )
        if self._refusal is not None:
            arrival.future.set_result(arrival.buffer)
        elif self._direct:
            self._all_reduce_directly(arrival)
        else:
            self._engine.take(arrival, raises=not self._in_backward)
        return arrival.future

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors (sharing memory) and scalars, for `torch.save`.

        Save it on every rank, each in a file of its own: residuals differ. After
        `flush()` rank 0's serves all.
        """
        self._engine.drain()
        density = self._reducer.collective.density
        entries = {
            **checkpoint.dump(self._engine.units),
            "scope": self._scope,
            **({} if density is None else {"density": density}),
            "passes": self._engine.passes,
            "flushed": self._flushed or not self._engine.units.remember,
        }
        key = checkpoint.key_of(self._group.rank, self._group.size)
        return {"version": checkpoint.FORMAT, key: entries}

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        *,
        residual: checkpoint.Residual = "keep",
    ) -> None:
        """Go on from what `state_dict` returned on this rank.

        `residual="drop"` accepts another rank's or another size's and starts without
        residuals. Nothing changes if this raises.
        """
        self._engine.drain()
        rank, size = self._group.rank, self._group.size
        entries = checkpoint.entries_for(state_dict, rank, size, residual)
        units = self._engine.units
        checkpoint.check(entries, units, residual)
        reducer = self._reducer
        if "density" in entries and reducer.collective.density is not None:
            reducer = _with_density(reducer, float(entries["density"]))
        planned = checkpoint.planned(state_dict, size)
        checkpoint.fill(units, entries, residual, scope=self._scope, planned=planned)
        self._reducer = reducer
        self._engine.restart(int(entries["passes"]))
        self._compared = False
        self._flushed = bool(entries["flushed"]) or residual == "drop"

    def flush(self) -> None:
        """Deliver every residual: its mean is added to `.grad`, and forgotten.

        Whatever else is remembered, such as momentum, starts again from zero.

        One dense all-reduce, made by all ranks together: right after the last
        `backward`, before the optimizer steps (and before a GradScaler unscales); or
        before a change of method or of the number of workers.
        """
        self._engine.drain()
        units = self._engine.units
        if units.remember:
            with self._engine.unbroken(), torch.no_grad():
                for state in units.states:
                    if state.memory.saved:  # else `x` is scratch, and owes nothing
                        self._deliver_all(state)
                    state.collective.saved.clear()
        units.sparse.forget()
        if self._may_be_direct:
            units.forget()
        # What was frozen meanwhile gets no gradient: it keeps what it is owed.
        names = units.layout.names
        self._flushed = all(self._parameters[name].requires_grad for name in names)

    def check_replicas(self) -> None:
        """Compare parameter checksums over all ranks; raise where replicas differ."""
        self._engine.drain()
        agreement.compare_replicas(self._transport, self._parameters, self._device)

    @property
    def density(self) -> float | None:
        """The fraction kept. Set it on every rank before the same step."""
        return self._reducer.collective.density

    @density.setter
    def density(self, density: float) -> None:
        reducer = _with_density(self._reducer, density)
        unguarded = self._engine.all_direct(self._reducer)
        if unguarded or reducer.on_nonfinite == "unchecked":
            # The guard, which would notice a difference, does not run: compare now.
            self._engine.drain()
            notes = agreement.gather_notes(
                self._transport, {"density": density}, self._device
            )
            if any(note != notes[0] for note in notes):
                raise AgreementError(f"ranks set different densities: {notes}")
        self._reducer = reducer

    def metrics(self) -> dict[str, float]:
        """Counters since this state was made, as plain floats.

        Bytes and rounds are this rank's; milliseconds are of the communication thread:
        `wait_ms` inside the group, `encode_ms` in the codec, the others in kernels.
        """
        self._engine.drain()
        traffic = self._group.traffic + self._direct_traffic
        return metrics_of(self._engine, traffic, self.density)

    def _start(self) -> None:
        """A new backward pass: its end will raise whatever goes wrong in it."""
        self._in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001
        self._refusal = None
        try:
            self._engine.refuse_if_torn()
            scale = self._scale()
            self._look_ahead()
            self._compare_plans()
        except ThinwireError as refusal:
            if not self._in_backward:
                raise
            self._refusal = refusal
            return
        self._flushed = False
        if not self._direct:
            self._engine.begin(self._timed(self._reducer), scale, bare=self._bare)

    def _compare_plans(self) -> None:
        """In the first pass, and in the first after a load."""
        if self._compared or self._direct:
            return
        note = checkpoint.note(self._engine.units, self._engine.passes)
        agreement.compare_settings(self._transport, note, None, self._device)
        self._compared = True

    def _scale(self) -> float:
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if not 0.0 < scale < float("inf"):
            raise ConfigError(f"the loss scale is {scale}: it must be finite, above 0")
        return scale

    def _raise_error(self) -> None:
        error = self._refusal or self._engine.error
        if error is not None:
            raise error

    @property
    def _may_be_direct(self) -> bool:
        """Whether the reducer is plain DDP, as long as nothing is remembered."""
        reducer = self._reducer
        return (
            isinstance(reducer.collective, Dense)
            and isinstance(reducer.feedback, Residual | Forget)
            and reducer.on_nonfinite != "zero"
            and not self._has_rows
        )

    def _look_ahead(self) -> None:
        """Whether this pass can be bare, and whether it is plain DDP altogether."""
        units = self._engine.units
        self._bare = not self._has_rows and self._engine.all_direct(self._reducer)
        self._direct = (self._may_be_direct and not units.remember) or (
            self._bare and not any(map(self._reducer.curious, units.states))
        )

    def _all_reduce_directly(self, arrival: Arrival) -> None:
        """What plain DDP does, to the bit: divide, then the library's all-reduce."""
        buffer = arrival.buffer
        cost = ring_all_reduce(buffer.nbytes, self._group.size)
        self._direct_traffic += Traffic(cost.rounds, cost.nbytes, cost.nbytes)
        if arrival.last:
            self._engine.count_direct_pass(self._reducer)

        def done(error: GroupError | None) -> None:
            if error is not None:
                self._engine.fail(error)
            arrival.future.set_result(buffer)

        try:
            # The division first, as DDP does, so that half precision does not overflow.
            self._transport.begin_all_reduce_(buffer.div_(self._group.size), done)
        except PeerError as error:
            done(error)
        except GroupError:
            # An earlier bucket has failed; its own report says why, and is on its way.
            arrival.future.set_result(buffer)

    def _deliver_all(self, unit: UnitState) -> None:
        x = unit.memory.x.whole()
        self._group.all_reduce_((x, Op.SUM))
        x.div_(self._group.size)
        unit.memory.rescale_(
            unit.memory.scale if self._scaler is None else self._scale()
        )
        for name, mean in unit.layout.views(x).items():
            parameter = self._parameters[name]
            if not parameter.requires_grad:
                continue
            spoilt = not self._engine.finite and _spoilt(parameter.grad)
            if parameter.grad is None or spoilt:
                parameter.grad = torch.empty_like(parameter).copy_(mean)
            else:
                parameter.grad.add_(mean)
            mean.zero_()
        for vector in unit.memory.saved.values():
            # It differs between ranks, and is owed to nobody.
            if vector is not unit.memory.x:
                vector.zero_()

    def _timed(self, reducer: Pipeline) -> Pipeline:
        if reducer.codec is None:
            return reducer
        return replace(reducer, codec=Timed(reducer.codec, self._engine.stopwatch))

    def _names_in(self, bucket: GradBucket) -> Names:
        key = tuple(map(id, bucket.parameters()))
        if key not in self._bucket_names:
            self._bucket_names[key] = tuple(self._names[each] for each in key)
        return self._bucket_names[key]

    @property
    def _future_devices(self) -> list[int | str | torch.device] | None:
        return [self._device] if self._device.type == "cuda" else None

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event


def _with_density(reducer: Pipeline, density: float) -> Pipeline:
    return replace(reducer, collective=reducer.collective.with_density(density))


def _spoilt(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(gradient.isfinite().all())


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when this backward pass is over.

    DDP queues its own last callback after the last bucket, so ours queues itself once
    more to come after it: DDP is then ready for another pass even if we raise.
    """
    engine = Variable._execution_engine  # noqa: SLF001 - there is no public way in
    engine.queue_callback(lambda: engine.queue_callback(callback))
