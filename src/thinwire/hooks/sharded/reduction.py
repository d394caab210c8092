"""Reduction: takes the gradients of shards, and puts their means in their place.

FSDP sets `.grad` of a module's shards when their reduce-scatter is done, and then calls
the hooks of each parameter, on the autograd thread. With `overlap`, a unit is submitted
as soon as all its gradients are there and all units before it are submitted; what is
left at the end of the backward pass is submitted then. All ranks reduce units in one
order: the one in which rank 0 got them in the first pass.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from thinwire.errors import ConfigError, ThinwireError
from thinwire.hooks import agreement
from thinwire.hooks.closed import CLOSED
from thinwire.hooks.engine import Engine
from thinwire.hooks.passes import Passes, at_end_of_backward
from thinwire.hooks.sharded.gradients import Run, Taken

Units = Sequence[tuple[Run, ...]]

# A model that was closed keeps the hooks until it is attached to again.
_WATCHED: "WeakKeyDictionary[nn.Module, Reduction]" = WeakKeyDictionary()


def is_watched(model: nn.Module) -> bool:
    """Whether a state that is not closed takes the gradients of a model."""
    found = _WATCHED.get(model)
    return found is not None and not found._closed  # noqa: SLF001


class Running:
    """Lives as long as the callbacks of a backward pass: not beyond its error."""


class Reduction:
    """Follows the gradients of shards from one pass to the next.

    `runs` are those of each unit. `begin` starts a pass.
    """

    def __init__(
        self,
        runs: Units,
        passes: Passes,
        engine: Engine,
        *,
        begin: Callable[[], None],
        overlap: bool,
    ) -> None:
        self._runs = runs
        names = [[name for run in unit for name in run.names] for unit in runs]
        self._passes, self._engine, self._begin_pass = passes, engine, begin
        self._overlap = overlap
        self._unit_of = {n: u for u, each in enumerate(names) for n in each}
        # With overlap, it is not known before the end of the first pass.
        self._order: list[int] = [] if overlap else [*range(len(runs))]
        self._used: set[str] = set()
        self._sizes = [len(each) for each in names]
        self._missing = [*self._sizes]
        self._arrivals: list[int] = []
        self._twice: str | None = None
        self._taken: list[Taken] = []
        self._submitted = 0
        self._begun = self._closed = False
        # What the running backward pass keeps alive, until it ends or raises.
        self._running: ReferenceType[Running] | None = None
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def watch(self, model: nn.Module) -> None:
        """Take the gradients of a model from now on; nothing else may do so."""
        before = _WATCHED.get(model)
        for hook in before._hooks if before is not None else ():  # noqa: SLF001
            hook.remove()
        _WATCHED[model] = self  # which keeps this object alive; hooks shall not
        me = ref(self)
        self._hooks = [
            shard.parameter.register_post_accumulate_grad_hook(partial(_note, me, name))  # type: ignore[no-untyped-call]
            for runs in self._runs
            for run in runs
            for name, shard in run.named()
        ]

    def close(self) -> None:
        """Refuse further gradients, until another one watches the model."""
        self._closed = True
        self._engine = self._passes = CLOSED  # the model keeps this object

    def reduce(self) -> None:
        """Reduce what `.grad` holds, outside of a backward pass."""
        self._begin()
        self._finish()

    def note(self, name: str) -> None:
        """FSDP has set a gradient."""
        if self._closed:
            at_end_of_backward(self._refuse)  # so that FSDP ends its pass
            return
        if self._overlap:
            self._begin_with_backward()
        if name in self._used:
            self._twice = name if self._overlap else None
            return
        self._used.add(name)
        unit = self._unit_of[name]
        self._missing[unit] -= 1
        self._arrivals.append(unit)
        if self._overlap:
            self._submit_complete()

    def _begin_with_backward(self) -> None:
        """Begin, unless this backward pass has begun already."""
        if self._running is not None and self._running() is None:
            # The last one has raised, half-way: `begin` will say so.
            self._reset()
            with suppress(ThinwireError):
                self._engine.drain()
        if not self._begun:
            running = Running()
            self._running = ref(running)
            at_end_of_backward(partial(self._finish, running))
            self._begin()

    def _refuse(self) -> None:
        raise ConfigError(
            "this state is closed, and nothing else reduces between replicas: attach "
            "to the model again to train on"
        )

    def _begin(self) -> None:
        if self._closed:
            self._refuse()
        self._begun = True
        self._begin_pass()

    def _submit_complete(self) -> None:
        order = self._order
        while (
            self._submitted < len(order) and not self._missing[order[self._submitted]]
        ):
            self._submit_next()

    def _submit_next(self) -> None:
        runs = self._runs[self._order[self._submitted]]
        self._submitted += 1
        for run in runs:
            last = self._submitted == len(self._order) and run is runs[-1]
            taken = run.taken(self._used, last=last)
            self._taken.append(taken)
            self._passes.take(taken.bucket)

    @torch.no_grad()
    def _finish(self, _: "Running | None" = None) -> None:
        """Submit what is left, wait for everything, and put the means in place."""
        try:
            if not self._passes.refused:
                self._order = self._order or self._agreed_order()
                while self._submitted < len(self._order):
                    self._submit_next()
                for taken in self._taken:
                    taken.bucket.future.wait()
                if self._twice is not None:
                    self._engine.fail(_came_twice(self._twice))
            self._passes.end()
            for taken in self._taken:
                taken.put_back(self._engine.delivered.untouched)
        finally:
            self._reset()

    def _reset(self) -> None:
        self._begun, self._submitted, self._twice = False, 0, None
        self._running = None
        self._used.clear()
        self._arrivals.clear()
        self._taken.clear()
        self._missing = [*self._sizes]

    def _agreed_order(self) -> list[int]:
        """The units in the order of their gradients on rank 0, then those without."""
        mine = list(dict.fromkeys([*self._arrivals, *range(len(self._runs))]))
        notes = agreement.gather_json(
            self._passes.everyone,
            {"order": mine, "twice": self._twice},
            self._engine.units.device,
            call="backward",
        )
        for note in notes:
            if note["twice"] is not None:
                raise _came_twice(note["twice"])
        return [int(unit) for unit in notes[0]["order"]]


def _note(reduction: ReferenceType[Reduction], name: str, _: Tensor) -> None:
    found = reduction()
    if found is not None:
        found.note(name)


def _came_twice(name: str) -> ConfigError:
    return ConfigError(
        f"{name!r} got its gradient in two parts in one backward pass: attach with "
        "overlap=False, and call state.reduce() before the optimizer's step"
    )
