"""What must hold from one life to the next: what is loaded is what was saved."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from chaos.checks import Told
from chaos.plan import Plan

# The life and the step in which it was made; later ones compare as larger.
Save = tuple[int, int]
# The steps from which on a number of ranks was in force.
Course = tuple[tuple[int, int], ...]

KINDS = ("residual", "momentum")
# More than one rounding of a float32, and the smallest one that is normal.
ROUNDING, SMALLEST = 2.0**-23, 2.0**-126


class Past:
    """The saves of the lives so far, and the weights after their steps."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._saves: dict[Save, dict[int, Mapping[str, Any]]] = {}
        self._complete: Save | None = None
        self._courses: list[Course] = []
        self._weights: dict[Course, dict[int, str]] = defaultdict(dict)
        self.restarts: list[str] = []

    def problems(self, life: int, ranks: Sequence[Told]) -> Iterator[str]:
        """What is wrong with what a life has loaded, and with what it repeats."""
        loads = [load for told in ranks for load in told.all("load")]
        if len(loads) < len(ranks):
            self._courses.append(())  # it did not begin: this is said elsewhere
            return
        yield from self._loads(life, loads)
        before = self._weights[self._courses[life]]
        for step, weights in sorted(ranks[0].steps.items()):
            if self._plan.repeats and before.get(step, weights) != weights:
                yield f"step {step} has other weights than in an earlier life"
        before.update(ranks[0].steps)
        self._keep_saves(life, ranks)

    def _loads(self, life: int, loads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Take up the course of what was saved, and compare with it."""
        size = self._plan.ranks[life]
        save: Save | None = loads[0]["save"]
        if any(load["save"] != save for load in loads):
            yield f"ranks have loaded {[load['save'] for load in loads]}"
        if self._complete is not None and (save is None or save < self._complete):
            yield f"{save} was loaded, and {self._complete} was complete"
        if save is None:
            self._courses.append(((0, size),))
            return
        begun, step = save
        course, saved = self._courses[begun], list(self._saves[save].values())
        if len(saved) != self._plan.ranks[begun]:
            yield f"{save} was loaded, which {len(saved)} ranks have begun"
        if any(load["weights"] != saved[0]["weights"] for load in loads):
            yield f"the weights of step {step} are not those that were saved"
        same = size == self._plan.ranks[begun]
        self.restarts.append("restart" if same else "restart with other ranks")
        if same:
            self._courses.append(course)
            yield from _same(step, saved, loads)
        else:
            self._courses.append((*course, (step, size)))
            yield from _conserved(step, saved, loads)

    def _keep_saves(self, life: int, ranks: Sequence[Told]) -> None:
        for rank, told in enumerate(ranks):
            for held in told.all("save"):
                self._saves.setdefault((life, held["step"]), {})[rank] = held
            for step in told.all("saved"):
                self._complete = max(self._complete or (life, step), (life, step))


def _same(
    step: int, saved: Sequence[Mapping[str, Any]], loads: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for rank, (then, now) in enumerate(zip(saved, loads, strict=False)):
        if then["digest"] != now["digest"]:
            yield f"rank {rank}, step {step}: what is loaded is not what was saved"


def _conserved(
    step: int, saved: Sequence[Mapping[str, Any]], loads: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Sums over ranks by their number, which reach the weights, are what they were."""
    for kind in KINDS:
        then = sum(held[kind] for held in saved) / len(saved)
        now = sum(load[kind] for load in loads) / len(loads)
        size = sum(np.abs(load[kind]) for load in loads) / len(loads)
        wrong = ~(np.abs(now - then) <= ROUNDING * size + SMALLEST)
        if wrong.any():
            at = int(np.argmax(wrong))
            yield (
                f"the {kind} over the restart in step {step}: {int(wrong.sum())} of "
                f"{wrong.size} means do not hold; element {at} had {then[at]} on "
                f"{len(saved)} ranks and has {now[at]} on {len(loads)}"
            )
