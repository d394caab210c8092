"""One backward pass: buckets come in, units go out as soon as they are complete.

Runs on the communication thread. Every rank sees the same buckets in the same order,
so every rank reduces the same units in the same order. DDP reads no result before the
last bucket's future is done, which is why a unit that turns out not to be finite can
still spoil the buckets before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.collectives import Total
from thinwire.groups import Group
from thinwire.hooks.rows import one_row
from thinwire.hooks.units import Names, Plan, Units
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector


@dataclass(slots=True)
class Arrival:
    """One bucket: the parameters in it, their gradients, and DDP's future."""

    names: Names
    buffer: Tensor
    last: bool
    future: "Future[Tensor]"
    ready: torch.cuda.Event | None = None

    @property
    def rows(self) -> bool:
        """Whether this is a sparse COO gradient, which comes in a bucket of its own."""
        return self.buffer.is_sparse


@dataclass(slots=True)
class Backward:
    """The buckets of one pass, and what of them has been delivered.

    `choose` is asked for the plan once every bucket is there, unless `plan` (the last
    pass's) already fits the buckets that arrive. `number` counts passes. A `bare` pass
    is one in which every unit is direct when it begins.
    """

    reducer: Pipeline
    group: Group
    units: Units
    plan: Plan | None
    choose: Callable[[Sequence[Names]], Plan]
    number: int = 0
    scale: float = 1.0
    per_name: bool = False
    bare: bool = False
    arrivals: list[Arrival] = field(default_factory=list)
    means: dict[int, Total] = field(default_factory=dict)
    finite: bool = True

    def add(self, arrival: Arrival) -> None:
        """Take a bucket in and reduce whatever it completes."""
        number = len(self.arrivals)
        self.arrivals.append(arrival)
        if self.plan is not None and not self._fits(number, arrival):
            self.plan = None
        if arrival.rows:
            self._reduce_rows(arrival)
        if self.plan is not None:
            for unit in self.plan.completes[number]:
                self._reduce(unit, self.plan)
        if arrival.last:
            self._finish()

    @property
    def delivered(self) -> int:
        """How many entries the totals of this pass listed."""
        return sum(
            mean.nnz if isinstance(mean, SparseVector) else mean.numel()
            for mean in self.means.values()
        )

    def _fits(self, number: int, arrival: Arrival) -> bool:
        plan = self.plan
        return (
            plan is not None
            and number < len(plan.buckets)
            and plan.buckets[number] == arrival.names
            and arrival.last == (number + 1 == len(plan.buckets))
        )

    def _finish(self) -> None:
        if self.plan is None:
            self.plan = self.choose([arrival.names for arrival in self.arrivals])
            for unit in range(len(self.plan.spans)):
                # A misfit that showed late may have let some units through already.
                if unit not in self.means:
                    self._reduce(unit, self.plan)
        if not self.finite:
            self._spoil()
        for unit, mean in self.means.items():
            self.reducer.settle(mean, self.units.states[unit])

    def _reduce(self, unit: int, plan: Plan) -> None:
        if not self.finite:
            return
        state = self.units.states[unit]
        pieces = [
            self.arrivals[span.bucket].buffer[span.start : span.stop]
            for span in plan.spans[unit]
        ]
        if self.bare and self.reducer.direct(state):
            self.means[unit] = self.reducer.reduce_directly_(pieces, self.group, state)
            return
        mean = self.reducer.reduce_(
            pieces, self.group, state, scale=self.scale, per_name=self.per_name
        )
        if mean is None:
            self._withdraw()
        else:
            self.means[unit] = mean

    def _reduce_rows(self, arrival: Arrival) -> None:
        if not self.finite:
            return
        (name,) = arrival.names
        arrival.buffer = self.units.sparse.mean(
            name, arrival.buffer, self.group, self.number
        )
        checked = self.reducer.on_nonfinite != "unchecked"
        if checked and not bool(arrival.buffer.values().isfinite().all()):
            self._withdraw()

    def _withdraw(self) -> None:
        """No rank will apply this step: take back what it has delivered so far."""
        for unit, mean in self.means.items():
            self.reducer.take_back_(mean, self.units.states[unit])
        self.means.clear()
        self.finite = False
        memories = [state.memory for state in self.units.states]
        if len({memory.scale for memory in memories}) > 1:
            for memory in memories:
                memory.rescale_(self.scale)

    def _spoil(self) -> None:
        for arrival in self.arrivals:
            if arrival.rows:
                arrival.buffer = one_row(arrival.buffer)
                self.reducer.spoil_([arrival.buffer.values()])
            else:
                self.reducer.spoil_([arrival.buffer])
