"""Units of reduction: the parameters that are reduced together, and their state.

DDP rebuilds its buckets after the first step of every process, also of a resumed one.
Results must not depend on that, so units are not buckets. In the first two steps all
parameters are one unit. After that DDP's final buckets are the units (or still one unit
of all); checkpoints keep them. A `BucketPlan` lists the pieces of buckets in each unit,
and the bucket with which its last piece arrives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from thinwire.collectives import GatherRows
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.reducers import Pipeline, UnitState
from thinwire.reducers.sparse_gradients import SparseGradients

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Elements `start` to `stop` of a bucket."""

    bucket: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The spans of buckets in each unit, and the units that each bucket completes."""

    buckets: tuple[Names, ...]
    spans: tuple[tuple[Span, ...], ...]
    completes: tuple[tuple[int, ...], ...]

    @classmethod
    def draw(
        cls,
        units: Sequence[Layout],
        buckets: Sequence[Names],
        sizes: Mapping[str, int],
    ) -> "BucketPlan":
        """Find the pieces of every unit; adjacent pieces of a bucket become one span.

        `sizes` has the number of elements of every name that may be in a bucket.
        """
        where: dict[str, Span] = {}
        for number, names in enumerate(buckets):
            start = 0
            for name in names:
                stop = start + sizes[name]
                where[name] = Span(number, start, stop)
                start = stop
        for name in (name for unit in units for name in unit.names):
            if name not in where:
                raise ConfigError(
                    f"DDP does not reduce {name!r}: it was frozen when the model was "
                    "wrapped. Set requires_grad first, then wrap, then attach"
                )
        spans = tuple(_joined([where[name] for name in unit.names]) for unit in units)
        completes: list[list[int]] = [[] for _ in buckets]
        for unit, pieces in enumerate(spans):
            completes[max(span.bucket for span in pieces)].append(unit)
        return cls(tuple(buckets), spans, tuple(map(tuple, completes)))


class Units:
    """The units, and the state of each, made when first needed.

    Sparse gradients are in no unit: `sparse` reduces each of them alone.
    """

    def __init__(
        self,
        reducer: Pipeline,
        layout: Layout,
        device: torch.device,
        sparse: SparseGradients | None = None,
    ) -> None:
        self.layout = layout
        self.sparse = sparse or SparseGradients(GatherRows())
        self.settled = False
        self.layouts = [layout] if layout.names else []
        self._reducer = reducer
        self.device = device
        self._states: list[UnitState] | None = None

    @property
    def states(self) -> list[UnitState]:
        """The state of each unit, in order."""
        if self._states is None:
            self._states = [self._init(layout) for layout in self.layouts]
        return self._states

    @property
    def has_states(self) -> bool:
        """Whether the states exist."""
        return self._states is not None

    @property
    def existing_states(self) -> Sequence[UnitState]:
        """The states if they exist; makes none."""
        return self._states or ()

    def forget(self) -> None:
        """Drop the states."""
        self._states = None

    def settle(self, groups: Sequence[Names]) -> None:
        """Make these the final units; every name keeps what it remembers."""
        self.regroup(groups)
        self.settled = True

    def regroup(self, groups: Sequence[Names]) -> None:
        """Make these the units; every name keeps what it remembers."""
        layouts = [self.layout.pick(names) for names in groups]
        if self._states is not None:
            self._states = self._carried_over(self._states, layouts)
        self.layouts = layouts

    @property
    def kinds(self) -> set[str]:
        """The names of the vectors that the feedback saves in checkpoints."""
        nothing = Layout((), ())
        return set(self._reducer.feedback.init(nothing, self.device).saved)

    def vectors(self) -> dict[str, dict[str, torch.Tensor]]:
        """The saved vectors by name, then by parameter, sharing memory."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for state in self.existing_states:
            for kind, vector in state.memory.saved.items():
                found.setdefault(kind, {}).update(state.layout.views(vector.whole()))
        return found

    def _init(self, layout: Layout) -> UnitState:
        return self._reducer.init(layout, self.device)

    def _carried_over(
        self, old: Sequence[UnitState], layouts: Sequence[Layout]
    ) -> list[UnitState]:
        held = self.vectors()
        states = [self._init(layout) for layout in layouts]
        for state in states:
            state.memory.scale, state.step = old[0].memory.scale, old[0].step
            for kind, vector in state.memory.saved.items():
                for name, view in state.layout.views(vector.whole()).items():
                    view.copy_(held[kind][name])
        return states


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined = [spans[0]]
    for span in spans[1:]:
        last = joined[-1]
        if (span.bucket, span.start) == (last.bucket, last.stop):
            joined[-1] = Span(last.bucket, last.start, span.stop)
        else:
            joined.append(span)
    return tuple(joined)
