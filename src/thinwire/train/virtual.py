"""Virtual workers: P ranks of a training run in one process, on one device.

There is one copy of the parameters. Every worker's gradient is computed from it, on the
worker's own batch, into a row of one matrix; each rank then reduces its row as a hook
of DDP would, over the simulated group; one optimizer steps. On a CPU the parameters are
those that real processes with `scope="model"` arrive at: bit for bit where a method
does not use the library's all-reduce.

The ranks are threads that live as long as the run. The first one trains; the others
wait until it calls them to a reduction.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.utils import _pytree as pytree

from thinwire.collectives import Dense, RowCollective
from thinwire.cost import ring_all_reduce
from thinwire.errors import AgreementError
from thinwire.feedback import Forget, Residual
from thinwire.groups import Counted, Group, simulate
from thinwire.hooks import checkpoint
from thinwire.hooks.backward import Arrival, Backward
from thinwire.hooks.engine import SETTLE_AT
from thinwire.hooks.rows import SparseGradients
from thinwire.hooks.units import Names, Plan, Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.train.captured import Captured
from thinwire.train.powersgd import LowRank, PowerSGD
from thinwire.train.replicas import Replicas, arrival_order, seed_of
from thinwire.train.shared_decoding import SharedDecoding
from thinwire.train.task import Batch, Carry, Data
from thinwire.train.workers import Vitals

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_SMALL = 2**21  # elements up to which reducing on the processor is the faster way


@dataclass(frozen=True, slots=True)
class Place:
    """How many workers, drawing which random numbers, reducing where.

    `reduce_on` is "cpu", "device" (where the model is) or "auto": on the processor
    where the model is small and its kernels are compiled, because eight ranks launch
    more kernels than a device can hide.
    """

    ranks: int
    seed: int = 0
    reduce_on: str = "auto"
    capture: bool = True


class Virtual:
    """Workers for `thinwire.train.run`; `run` gives them their threads."""

    leads = True
    seconds_reducing = 0.0  # in the last step

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        place: Place,
        reducer: Pipeline | PowerSGD,
        sparse: RowCollective,
    ) -> None:
        self.model = model
        self.ranks = place.ranks
        self.steps = data.steps(place.ranks)
        self._data = data
        self._place = place
        self._replicas = Replicas(model, data, place.ranks)
        named = self._replicas.layout
        order = arrival_order(model, data, self._batch(0, 0, 0), seed=place.seed)
        self._replicas.lie_as(order)
        self._carries: list[Carry] = [None] * place.ranks
        self._captured: Captured | None = None
        self._may_capture = (
            place.capture and self._rows.is_cuda and not self._replicas.sparse
        )
        self._reduction = _reduction(self._replicas, named, place, reducer, sparse)
        self._point_grads()

    def run(self, body: Callable[["Virtual"], Result]) -> Result:
        """Call `body(self)` with all ranks at hand; what it returned."""
        return self._reduction.run(lambda: body(self))

    def backward(self, epoch: int, step: int) -> Tensor:
        batches = [self._batch(rank, epoch, step) for rank in range(self.ranks)]
        losses, sparse = self._gradients(epoch, step, batches)
        began = time.perf_counter()
        means = self._reduction.reduce_(sparse)
        self.seconds_reducing = time.perf_counter() - began
        named = dict(self.model.named_parameters()) if means else {}
        for name, mean in means.items():
            named[name].grad = mean
        return losses.mean()

    @property
    def how(self) -> str:
        """How gradients are computed and reduced, for people."""
        computed = "eagerly" if self._captured is None else "in a CUDA graph"
        return f"computed {computed}, reduced {self._reduction.where}"

    def evaluate(self) -> float:
        return self._data.evaluate(self.model)

    def final(self) -> dict[str, float]:
        return self._data.final(self.model)

    def set_density(self, density: float) -> None:
        self._reduction.set_density(density)

    def vitals(self) -> Vitals:
        return self._reduction.vitals()

    def check_replicas(self) -> None:
        self._reduction.check()

    def state_dict(self) -> Any:
        return self._reduction.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._reduction.load_state_dict(state)

    @property
    def _rows(self) -> Tensor:
        return self._replicas.rows

    def _batch(self, rank: int, epoch: int, step: int) -> Batch:
        return self._data.batch(
            rank=rank, ranks=self.ranks, epoch=epoch, step=step, seed=self._place.seed
        )

    def _gradients(
        self, epoch: int, step: int, batches: Sequence[Batch]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        number = epoch * self.steps + step
        if step == 0:
            self._carries = [None] * self.ranks
            fresh = True
        else:
            fresh = step == 1
        if step > 0 and self._may_capture and self._captured is None:
            self._try_capture(batches)
        # The first step of an epoch has nothing to carry, the graph may have.
        if self._captured is not None and (step > 0 or not self._carrying):
            torch.manual_seed(seed_of(self._place.seed, number, 0))
            again = self._carries if fresh and self._carrying else None
            return self._captured.replay(batches, again), []
        return self._eagerly(number, batches)

    @property
    def _carrying(self) -> bool:
        leaves = pytree.tree_leaves(self._carries)
        return any(isinstance(leaf, Tensor) for leaf in leaves)

    def _eagerly(
        self, number: int, batches: Sequence[Batch]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        self._replicas.share_buffers()
        losses, sparse = [], []
        for rank, batch in enumerate(batches):
            torch.manual_seed(seed_of(self._place.seed, number, rank))
            loss, carry, rows = self._replicas.backward(
                rank, batch, self._carries[rank]
            )
            self._carries[rank] = carry
            losses.append(loss)
            sparse.append(rows)
        return torch.stack(losses), sparse

    def _try_capture(self, batches: Sequence[Batch]) -> None:
        try:
            self._captured = Captured(self._replicas, batches, self._carries)
        except RuntimeError as error:
            self._may_capture = False
            logger.warning(
                "no CUDA graph of this model (%s): every step is launched kernel by "
                "kernel, which is slower",
                error,
            )

    def _point_grads(self) -> None:
        """The optimizer reads the mean where the reduction leaves it."""
        views = self._replicas.layout.views(self._rows[0])
        for name, parameter in self.model.named_parameters():
            if name in views:
                parameter.grad = views[name]


class Averaging:
    """Methods that work on all rows at once: the dense mean, and PowerSGD."""

    where = "as one matrix"

    def __init__(self, replicas: Replicas, method: PowerSGD | None) -> None:
        self._rows = replicas.rows
        self._low_rank = (
            None if method is None else LowRank(method, replicas.layout, replicas.rows)
        )
        self._dense = 2 if method is None else method.dense
        self._sent = 0.0
        self._rounds = 0.0
        self._steps = 0

    def run(self, body: Callable[[], Result]) -> Result:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the ranks of a simulation, and in real processes
        try:
            return body()
        finally:
            torch.set_num_threads(threads)

    def reduce_(self, sparse: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        self._steps += 1
        cost = ring_all_reduce(4 * self._rows.shape[1], len(self._rows))
        if self._low_rank is None:
            self._rows[0].copy_(self._rows.mean(0))
        else:
            self._low_rank.reduce_(self._rows)
            if self._steps > self._dense:
                cost = self._low_rank.cost()
        self._sent += cost.nbytes
        self._rounds += cost.rounds
        return {}

    def set_density(self, density: float) -> None:
        return None

    def vitals(self) -> Vitals:
        ranks = len(self._rows)
        kept = [0.0] * ranks if self._low_rank is None else self._low_rank.norms()
        return Vitals((self._sent,) * ranks, tuple(kept), self._rounds)

    def check(self) -> None:
        return None

    def state_dict(self) -> Any:
        return {
            "sent": self._sent,
            "steps": self._steps,
            "low_rank": None if self._low_rank is None else self._low_rank.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        self._sent, self._steps = float(state["sent"]), int(state["steps"])
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state["low_rank"])


@dataclass(slots=True)
class Rank:
    """One rank's side of every reduction: what a hook's engine is to DDP."""

    units: Units
    passes: int = 0
    plan: Plan | None = None
    sent_before: float = 0.0
    group: Counted | None = None
    means: list[Tensor] = field(default_factory=list)

    def reduce_(
        self, reducer: Pipeline, buckets: Sequence[tuple[Names, Tensor]], row: Layout
    ) -> None:
        """Reduce one pass, as `hooks.engine.Engine` does."""
        sizes = dict(zip(row.names, map(_numel, row.shapes), strict=True))

        def choose(names: Sequence[Names]) -> Plan:
            return Plan.draw(self.units.layouts, names, sizes | _zeros(names, sizes))

        if self.group is None:
            raise RuntimeError("ranks reduce within Virtual.run")
        current = Backward(
            reducer, self.group, self.units, self.plan, choose, number=self.passes
        )
        for number, (names, buffer) in enumerate(buckets):
            last = number + 1 == len(buckets)
            current.add(Arrival(names, buffer, last, Future()))
        self.means = [each.buffer for each in current.arrivals if each.rows]
        self.plan = current.plan
        self.passes += 1
        if self.passes == SETTLE_AT and not self.units.settled:
            self.units.settle([row.names] if row.names else [])
            self.plan = None

    @property
    def sent(self) -> float:
        """Bytes since the run began, also before it was resumed."""
        here = 0 if self.group is None else self.group.traffic.sent
        return self.sent_before + here

    @property
    def rounds(self) -> float:
        """Rounds since this process began."""
        return 0.0 if self.group is None else float(self.group.traffic.rounds)


class Simulated:
    """Ranks that reduce their rows over the simulated group, each in its thread."""

    def __init__(
        self,
        replicas: Replicas,
        named: Layout,
        place: Place,
        reducer: Pipeline,
        sparse: RowCollective,
    ) -> None:
        rows = replicas.rows
        self._layout = replicas.layout
        self._sparse_names = replicas.sparse
        on_processor = rows.is_cuda and _on_processor(place, rows)
        self._device = torch.device("cpu") if on_processor else rows.device
        self._rows = rows
        self._work = (
            torch.empty(rows.shape, pin_memory=True) if on_processor else rows
        )
        self._reducer = _sharing_decoded(reducer)
        self._ranks = [
            Rank(
                Units(
                    reducer, named, self._device, SparseGradients(sparse, reducer.seed)
                )
            )
            for _ in range(place.ranks)
        ]
        for rank in self._ranks:
            _ = rank.units.states
        self.where = f"on {self._device.type} by {place.ranks} ranks"
        self._call: Callable[[], None] | None = None
        self._sparse: Sequence[Sequence[Tensor]] = ()
        self._over = False

    def run(self, body: Callable[[], Result]) -> Result:
        self._over = False

        def live(group: Group) -> Result | None:
            rank = self._ranks[group.rank]
            rank.sent_before = rank.sent
            rank.group = Counted(group)
            if group.rank:
                self._serve(group)
                return None
            self._call = group.all_reduce_
            result = body()
            self._over = True
            group.all_reduce_()
            return result

        result, *_ = simulate(len(self._ranks), live)
        return result  # type: ignore[return-value]

    def reduce_(self, sparse: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Reduce all rows; the mean is in the first, sparse means are returned."""
        if self._call is None:
            raise RuntimeError("ranks reduce within Virtual.run")
        self._sparse = [[g.detach().to(self._device) for g in each] for each in sparse]
        if self._work is not self._rows:
            self._work.copy_(self._rows, non_blocking=True)
            _wait()
        self._call()
        self._reduce(0)
        self._call()
        if self._work is not self._rows:
            self._rows[0].copy_(self._work[0], non_blocking=True)
        means = [mean.to(self._rows.device) for mean in self._ranks[0].means]
        return dict(zip(self._sparse_names, means, strict=True))

    def set_density(self, density: float) -> None:
        if self._reducer.collective.density is not None:
            collective = self._reducer.collective.with_density(density)
            self._reducer = replace(self._reducer, collective=collective)

    def vitals(self) -> Vitals:
        return Vitals(
            tuple(rank.sent for rank in self._ranks),
            tuple(
                sum(
                    torch.linalg.vector_norm(state.memory.x).item() ** 2
                    for state in rank.units.states
                    if state.memory.saved
                )
                ** 0.5
                for rank in self._ranks
            ),
            self._ranks[0].rounds,
        )

    def check(self) -> None:
        """Compare what the last reduction left on every rank."""
        first = self._ranks[0]
        for number, rank in enumerate(self._ranks):
            same = torch.equal(self._work[number], self._work[0]) and all(
                torch.equal(mine.to_dense(), theirs.to_dense())
                for mine, theirs in zip(rank.means, first.means, strict=True)
            )
            if not same:
                raise AgreementError(
                    f"ranks 0 and {number} were given different mean gradients"
                )

    def state_dict(self) -> Any:
        density = self._reducer.collective.density
        size = len(self._ranks)
        return [
            {
                "version": checkpoint.FORMAT,
                checkpoint.key_of(number, size): {
                    **checkpoint.dump(rank.units),
                    "scope": "model",
                    **({} if density is None else {"density": density}),
                    "passes": rank.passes,
                    "flushed": False,
                },
                "sent": rank.sent,
            }
            for number, rank in enumerate(self._ranks)
        ]

    def load_state_dict(self, state: Any) -> None:
        size = len(self._ranks)
        for number, (rank, saved) in enumerate(zip(self._ranks, state, strict=True)):
            entries = checkpoint.entries_for(saved, number, size, "keep")
            checkpoint.check(entries, rank.units, "keep")
            checkpoint.fill(rank.units, entries, "keep", scope="model", planned=True)
            rank.passes, rank.plan = int(entries["passes"]), None
            here = 0 if rank.group is None else rank.group.traffic.sent
            rank.sent_before = float(saved.get("sent", 0.0)) - here

    def _serve(self, group: Group) -> None:
        while True:
            group.all_reduce_()
            if self._over:
                return
            self._reduce(group.rank)
            group.all_reduce_()

    def _reduce(self, number: int) -> None:
        # Sparse buckets come first, as DDP draws them where a model is small.
        buckets: list[tuple[Names, Tensor]] = []
        if self._sparse_names:
            pairs = zip(self._sparse_names, self._sparse[number], strict=True)
            buckets += [((name,), grad) for name, grad in pairs]
        if self._layout.names:
            buckets.append((self._layout.names, self._work[number]))
        with torch.no_grad():
            self._ranks[number].reduce_(self._reducer, buckets, self._layout)


def _reduction(
    replicas: Replicas,
    named: Layout,
    place: Place,
    reducer: Pipeline | PowerSGD,
    sparse: RowCollective,
) -> Averaging | Simulated:
    if isinstance(reducer, PowerSGD):
        return Averaging(replicas, reducer)
    direct = isinstance(reducer.collective, Dense) and isinstance(
        reducer.feedback, Residual | Forget
    )
    if direct and not replicas.sparse:
        return Averaging(replicas, None)
    return Simulated(replicas, named, place, reducer, sparse)


def _sharing_decoded(reducer: Pipeline) -> Pipeline:
    if reducer.codec is None:
        return reducer
    return replace(reducer, codec=SharedDecoding(reducer.codec))


def _on_processor(place: Place, rows: Tensor) -> bool:
    if place.reduce_on == "auto":
        return rows.shape[1] <= _SMALL and _has_numba()
    return place.reduce_on == "cpu"


def _has_numba() -> bool:
    from importlib.util import find_spec  # noqa: PLC0415

    return find_spec("numba") is not None


def _wait() -> None:
    """Until the device is done, leaving the processor to others meanwhile."""
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record()
    done.synchronize()


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _zeros(buckets: Sequence[Names], known: dict[str, int]) -> dict[str, int]:
    """Sparse names have no place in a row."""
    return {name: 0 for names in buckets for name in names if name not in known}
