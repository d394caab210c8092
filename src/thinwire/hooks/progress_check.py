"""Warns, once, if a run does not get ahead: a frozen run looks like a slow one."""

import torch

from thinwire.hooks.units import Units

# Skipped passes in a row. A GradScaler halves its scale some 20 times at most.
MOST_SKIPPED = 50
# Passes in a row that delivered no entry.
MOST_EMPTY = 100
# The residual is measured at passes that are a power of two, from here on.
FIRST = 64
# It grows without bound if it grew by this factor in each of three measurements,
GROWTH = 1.3
# and is longer than all gradients of the passes after which an entry usually leaves it,
# this many times.
LONGEST = 2.0


class ProgressCheck:
    """Looks at every pass of an engine; `warning` is set when something is wrong.

    `momentum` is that of the feedback: its velocity is the sum of many gradients.
    """

    def __init__(self, momentum: float = 0.0) -> None:
        self._velocity = 1.0 / (1.0 - momentum)
        self._skipped = 0
        self._empty = 0
        self._ratios: list[float] = []
        self._ended = False
        self.warning = ""

    def take_warning(self) -> str:
        """The warning, once; empty if there is none."""
        text, self.warning = self.warning, ""
        return text

    @property
    def ratio(self) -> float | None:
        """The residual's norm over the gradient's, when it was last measured."""
        return self._ratios[-1] if self._ratios else None

    def measures(self, number: int) -> bool:
        """Whether the gradient of a pass is to be measured, before it is reduced."""
        return number >= FIRST and number & (number - 1) == 0 and not self._ended

    def note(self, *, finite: bool, delivered: int) -> None:
        """Count a pass, which `delivered` this number of entries."""
        self._skipped = 0 if finite else self._skipped + 1
        self._empty = self._empty + 1 if finite and not delivered else 0
        if self._skipped == MOST_SKIPPED:
            self._warn(
                f"the last {MOST_SKIPPED} gradients were not finite on some rank, so "
                "nothing was trained: lower the learning rate or the loss scale, clip, "
                "and look for the rank and batch with the first infinity or NaN"
            )
        elif self._empty == MOST_EMPTY:
            self._warn(
                f"the last {MOST_EMPTY} passes delivered nothing, so nothing was "
                "trained: raise the density, or take another method"
            )

    def measured(self, gradient: float, units: Units, kept: float) -> None:
        """Compare this rank's residual with the norm of its gradient."""
        ratio = residual_norm(units) / gradient if gradient > 0 else 0.0
        self._ratios.append(ratio)
        *_, a, b, c, d = 0.0, 0.0, 0.0, *self._ratios
        grows = a > 0 and all(y >= GROWTH * x for x, y in ((a, b), (b, c), (c, d)))
        if grows and ratio * kept > LONGEST * self._velocity:
            self._warn(
                f"the residual is {ratio:.0f} gradients long and keeps growing "
                f"({a:.0f}, {b:.0f}, {c:.0f} when the run was an eighth, a quarter and "
                "half as long), so most of the gradient is not applied: raise the "
                "density, or take another method"
            )

    def _warn(self, text: str) -> None:
        if not self._ended:
            self._ended, self.warning = True, text


def residual_norm(units: Units) -> float:
    """The norm of all that this rank has not delivered; reads the whole residual."""
    squares = [
        torch.linalg.vector_norm(state.memory.x.whole()).item() ** 2
        for state in units.existing_states
        if state.memory.saved
    ]
    return float(sum(squares) ** 0.5)
