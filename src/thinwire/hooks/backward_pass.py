"""BackwardPass: buckets come in; units are reduced as soon as they are complete.

It runs on the communication thread. All ranks see the same buckets in the same order,
so they reduce the same units in the same order. DDP reads no result before the last
bucket's future is done, so a unit that is not finite can still change earlier buckets.
With `clip`, nothing is reduced before the last bucket, with which the norm is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.collectives import Total
from thinwire.groups import Group
from thinwire.hooks.clipping import clip_
from thinwire.hooks.units import BucketPlan, Names, Units
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.reducers.sparse_gradients import one_row
from thinwire.sparse import SparseVector


@dataclass(slots=True)
class PendingBucket:
    """A bucket for the comm thread: parameters, gradients, and DDP's future.

    `sizes` are the numbers of elements of the parameters. `old` are the names of those
    whose gradient is of an earlier pass.
    """

    names: Names
    sizes: tuple[int, ...]
    buffer: Tensor
    last: bool
    future: "Future[Tensor]"
    ready: torch.cuda.Event | None = None
    old: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        names: Names,
        sizes: tuple[int, ...],
        buffer: Tensor,
        *,
        last: bool,
        old: frozenset[str] = frozenset(),
    ) -> Self:
        """A bucket that is ready when the current stream is."""
        if not buffer.is_cuda:
            return cls(names, sizes, buffer, last, Future(), None, old)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        future: Future[Tensor] = Future(devices=[buffer.device])
        return cls(names, sizes, buffer, last, future, ready, old)

    @property
    def rows(self) -> bool:
        """Whether this is a sparse COO gradient, which has a bucket of its own."""
        return self.buffer.is_sparse

    def gradients(self) -> dict[str, Tensor]:
        """The gradients by name, sharing memory; of rows, the values."""
        if self.rows:
            return {self.names[0]: self.buffer.values()}
        return dict(
            zip(self.names, torch.split(self.buffer, [*self.sizes]), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """The elements of a unit, by their place in its layout, that a pass delivered."""

    layout: Layout
    indices: Tensor


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What a pass delivered: some elements of these units, everything of the others.

    `finite` is False if the gradient was not finite on some rank: no rank applies it.
    `untouched` are parameters whose gradient is what an earlier pass has delivered.
    """

    units: tuple[Delivery, ...] = ()
    finite: bool = True
    untouched: frozenset[str] = frozenset()


@dataclass(slots=True)
class BackwardPass:
    """The buckets of one pass, and the means of the units reduced so far.

    `plan` is that of the last pass; it is used if the same buckets arrive. Otherwise
    `choose` makes one when all buckets have arrived. `number` counts passes. A `plain`
    pass reduces every unit as DDP would. `clip` bounds the norm of its gradient. If it
    is `measured`, `energy` is the sum of the squares of its units' gradients.
    """

    reducer: Pipeline
    group: Group
    units: Units
    plan: BucketPlan | None
    choose: Callable[[Sequence[Names]], BucketPlan]
    number: int = 0
    scale: float = 1.0
    per_name: bool = False
    plain: bool = False
    clip: float | None = None
    measured: bool = False
    energy: float = 0.0
    buckets: list[PendingBucket] = field(default_factory=list)
    means: dict[int, Total] = field(default_factory=dict)
    finite: bool = True

    def add(self, bucket: PendingBucket) -> None:
        """Take a bucket and reduce the units that it completes."""
        number = len(self.buckets)
        self.buckets.append(bucket)
        if self.plan is not None and not self._fits(number, bucket):
            self.plan = None
        if self.clip is None:
            self._reduce_completed(number)
        if bucket.last:
            self._finish()

    @property
    def delivered(self) -> int:
        """The number of entries in the totals of this pass."""
        return sum(
            mean.nnz if isinstance(mean, SparseVector) else mean.numel()
            for mean in self.means.values()
        )

    @property
    def deliveries(self) -> Deliveries:
        """What it delivered; the layouts are those of the units as they are now."""
        units = tuple(
            Delivery(self.units.layouts[unit], mean.indices)
            for unit, mean in sorted(self.means.items())
            if isinstance(mean, SparseVector) and mean.nnz < mean.size
        )
        states = [self.units.states[unit] for unit in self.means]
        untouched = frozenset[str]().union(*(state.untouched for state in states))
        return Deliveries(units, self.finite, untouched)

    def _fits(self, number: int, bucket: PendingBucket) -> bool:
        plan = self.plan
        return (
            plan is not None
            and number < len(plan.buckets)
            and plan.buckets[number] == bucket.names
            and bucket.last == (number + 1 == len(plan.buckets))
        )

    def _reduce_completed(self, number: int) -> None:
        if self.buckets[number].rows:
            self._reduce_rows(self.buckets[number])
        if self.plan is not None:
            units, last = self.plan.completes[number], self.buckets[number].last
            self._reduce_all(units, last=last)

    def _finish(self) -> None:
        if self.clip is not None:
            self._clip_(self.clip)
            for number in range(len(self.buckets)):
                self._reduce_completed(number)
        if self.plan is None:
            self.plan = self.choose([bucket.names for bucket in self.buckets])
            # If a mismatch came late, some units have been reduced already.
            every = range(len(self.plan.spans))
            self._reduce_all([u for u in every if u not in self.means], last=True)
        if not self.finite:
            self._fill_nonfinite()
        for unit, mean in self.means.items():
            self.reducer.settle(mean, self.units.states[unit])

    def _clip_(self, clip: float) -> None:
        """Clip this rank's gradient: all buckets, of sparse ones the summed rows."""
        for bucket in self.buckets:
            if bucket.rows:
                bucket.buffer = bucket.buffer.coalesce()
        found: dict[str, Tensor] = {}
        for bucket in self.buckets:
            found |= bucket.gradients()
        old = frozenset[str]().union(*(bucket.old for bucket in self.buckets))
        # In one order, whatever DDP's buckets are: so a resumed run has the same norm.
        new = [found[name] for name in sorted(found.keys() - old)]
        spared = [found[name] for name in old]
        clip_(new, clip, self.scale, spared=spared, group=self.group)

    def _reduce_all(self, units: Sequence[int], *, last: bool) -> None:
        """Reduce units; `last` are those of the pass's last bucket.

        After any but the very last one, the pass may turn out not to be finite.
        """
        for unit in units:
            final = last and unit == units[-1]
            undoable = not final and self._may_fail_later
            self.units.states[unit].undoable = undoable
            self._reduce(unit)

    @property
    def _may_fail_later(self) -> bool:
        """Whether a unit can be found not to be finite after another was reduced."""
        if self.reducer.on_nonfinite == "unchecked":
            return False
        # A clipped gradient is NaN everywhere or nowhere, but its mean may overflow.
        halves = any(bucket.buffer.dtype == torch.float16 for bucket in self.buckets)
        return self.clip is None or halves

    def _reduce(self, unit: int) -> None:
        plan = self.plan
        if not self.finite or plan is None:
            return
        state = self.units.states[unit]
        pieces = [
            self.buckets[span.bucket].buffer[span.start : span.stop]
            for span in plan.spans[unit]
        ]
        if self.measured:
            norms = [float(torch.linalg.vector_norm(each.float())) for each in pieces]
            self.energy += sum(norm**2 for norm in norms)
        if self.plain:
            self.means[unit] = self.reducer.reduce_plainly_(pieces, self.group, state)
            return
        state.unused = frozenset[str]().union(*(bucket.old for bucket in self.buckets))
        mean = self.reducer.reduce_(
            pieces, self.group, state, scale=self.scale, per_name=self.per_name
        )
        if mean is None:
            self._undo()
        else:
            self.means[unit] = mean

    def _reduce_rows(self, bucket: PendingBucket) -> None:
        if not self.finite:
            return
        (name,) = bucket.names
        bucket.buffer = self.units.sparse.mean(
            name, bucket.buffer, self.group, self.number
        )
        checked = self.reducer.on_nonfinite != "unchecked"
        if checked and not bool(bucket.buffer.values().isfinite().all()):
            self._undo()

    def _undo(self) -> None:
        """Undo what this pass has reduced: no rank will apply it."""
        for unit in self.means:
            self.reducer.undo_(self.units.states[unit])
        self.means.clear()
        self.units.sparse.undo_()
        self.finite = False

    def _fill_nonfinite(self) -> None:
        for bucket in self.buckets:
            if bucket.rows:
                bucket.buffer = one_row(bucket.buffer)
                self.reducer.fill_nonfinite_([bucket.buffer.values()])
            else:
                self.reducer.fill_nonfinite_([bucket.buffer])
