"""Simulated ranks that reduce virtual workers' gradients, each in its own thread.

The threads live as long as the run. The first one trains; the others wait until it
calls them to a reduction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from experiments.train.replicas import Replicas
from experiments.train.shared_decoding import SharedDecoding
from experiments.train.workers import HealthRecord
from thinwire.collectives import RowCollective
from thinwire.errors import AgreementError, ConfigError
from thinwire.groups import Counted, Group, simulate
from thinwire.hooks import checkpoint, place, saved_state
from thinwire.hooks.backward_pass import BackwardPass, PendingBucket
from thinwire.hooks.engine import SETTLE_AT
from thinwire.hooks.units import BucketPlan, Names, Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.sparse_gradients import SparseGradients

Result = TypeVar("Result")

_SMALL = 2**21  # elements up to which reducing on the processor is the faster way


@dataclass(frozen=True, slots=True)
class Way:
    """How a device is used; results do not depend on it, beyond rounding and dropout.

    `reduce_on` is "cpu", "device" (where the model is) or "auto": on the processor
    where the model is small and its kernels are compiled, because eight ranks launch
    more kernels than a device can hide. `capture` makes a CUDA graph of all workers,
    whose dropout draws the numbers of all workers in a row.
    """

    reduce_on: str = "auto"
    capture: bool = True

    def __post_init__(self) -> None:
        if self.reduce_on not in ("auto", "cpu", "device"):
            raise ConfigError(
                f"reduce_on is {self.reduce_on!r}: choose 'auto', 'cpu' or 'device'"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """The number of workers, and their seed."""

    ranks: int
    seed: int = 0
    way: Way = Way()

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ConfigError(f"{self.ranks} workers: give at least 1")


@dataclass(slots=True)
class Rank:
    """One rank's side of every reduction: what a hook's engine is to DDP."""

    units: Units
    passes: int = 0
    plan: BucketPlan | None = None
    sent_before: float = 0.0
    group: Counted | None = None
    means: list[Tensor] = field(default_factory=list)

    def reduce_(
        self, reducer: Pipeline, buckets: Sequence[tuple[Names, Tensor]], row: Layout
    ) -> None:
        """Reduce one pass, as `hooks.engine.Engine` does."""
        sizes = dict(zip(row.names, map(_numel, row.shapes), strict=True))

        def choose(names: Sequence[Names]) -> BucketPlan:
            return BucketPlan.draw(
                self.units.layouts, names, sizes | _zeros(names, sizes)
            )

        if self.group is None:
            raise RuntimeError("ranks reduce within Virtual.run")
        current = BackwardPass(
            reducer, self.group, self.units, self.plan, choose, number=self.passes
        )
        for number, (names, buffer) in enumerate(buckets):
            last, known = number + 1 == len(buckets), sizes | _zeros([names], sizes)
            inside = tuple(known[name] for name in names)
            current.add(PendingBucket(names, inside, buffer, last, Future()))
        self.means = [each.buffer for each in current.buckets if each.rows]
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
        *,
        place: Place,
        reducer: Pipeline,
        sparse: RowCollective,
    ) -> None:
        rows = replicas.rows
        self._layout = replicas.layout
        self._sparse_names = replicas.sparse
        on_processor = rows.is_cuda and _on_processor(place.way, rows)
        self._device = torch.device("cpu") if on_processor else rows.device
        self._rows = rows
        self._work = torch.empty(rows.shape, pin_memory=True) if on_processor else rows
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

    def health_record(self) -> HealthRecord:
        return HealthRecord(
            tuple(rank.sent for rank in self._ranks),
            tuple(
                sum(
                    torch.linalg.vector_norm(state.memory.x.whole()).item() ** 2
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
                "version": saved_state.FORMAT,
                place.Place(number, size).key: {
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
            found = saved_state.read(saved, rank.units, place.Place(number, size))
            checkpoint.fill(rank.units, found, scope="model")
            rank.passes, rank.plan = found.entries.passes, None
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


def _sharing_decoded(reducer: Pipeline) -> Pipeline:
    if reducer.codec is None:
        return reducer
    return replace(reducer, codec=SharedDecoding(reducer.codec))


def _on_processor(way: Way, rows: Tensor) -> bool:
    if way.reduce_on == "auto":
        return rows.shape[1] <= _SMALL and _has_numba()
    return way.reduce_on == "cpu"


def _has_numba() -> bool:
    return find_spec("numba") is not None


def _wait() -> None:
    """Wait for the device without using the processor."""
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record()
    done.synchronize()


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _zeros(buckets: Sequence[Names], known: dict[str, int]) -> dict[str, int]:
    """Sparse names have no place in a row."""
    return {name: 0 for names in buckets for name in names if name not in known}
