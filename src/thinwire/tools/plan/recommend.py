"""Which of the forecasts to take: the same advice as docs/guides/choose.md gives."""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.tools.plan.accuracy import USUAL, Behind, behind, held
from thinwire.tools.plan.forecast import Forecast

DOUBT = 0.15
"""A forecast cannot tell methods apart that differ by less: docs/reference/plan.md."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The forecast to take, dense's, and why, in a sentence or two.

    `lower` is the fastest at a density that did not hold accuracy, where it would be
    faster and what it costs was measured.
    """

    taken: Forecast
    dense: Forecast
    lower: Forecast | None = None

    @classmethod
    def of(cls, rows: Sequence[Forecast]) -> "Advice":
        """Of the densities that held accuracy; of all, where there are no others."""
        dense = next(row for row in rows if row.choice.method == "dense")
        others = [row for row in rows if row is not dense]
        safe = [row for row in others if held(row.choice)]
        coded = [row for row in safe if row.choice.density is not None]
        safe = safe if coded else others
        best = min(safe, key=_step, default=dense)
        usual = [row for row in safe if row.choice.method == USUAL]
        close = min(usual, key=_step, default=best)
        if _step(close) < (1 + DOUBT) * _step(best) and _gains(close, dense):
            best = close
        taken = dense if dense.step <= best.step else best
        known = [row for row in others if row not in safe and behind(row.choice)]
        lower = min(known, key=_step, default=None)
        faster = lower is not None and _gains(lower, taken)
        return cls(taken, dense, lower if faster else None)

    @property
    def keeps_dense(self) -> bool:
        """Whether no method is faster by more than the error of the forecast."""
        return not _gains(self.taken, self.dense)

    @property
    def times(self) -> float:
        """How many times as fast as dense the step is."""
        return self.dense.step / self.taken.step

    @property
    def sentence(self) -> str:
        """What to do."""
        if self.taken is self.dense:
            return "Dense is best: leave DDP as it is."
        name = called(self.taken)
        if self.keeps_dense:
            return (
                f"Dense is as good: {name} would be {100 * (self.times - 1):.0f} % "
                "faster, which is less than this forecast can tell. Leave DDP as it "
                "is, or measure both."
            )
        return f"Take {name}: a step {self.times:.3g} times as fast as dense."

    @property
    def accuracy(self) -> str:
        """What it cost, and what a lower density would; "" where that is not known."""
        said = []
        taken = behind(self.taken.choice)
        if taken is not None and not self.keeps_dense:
            said.append(f"In training it ended {_cost(taken)}.")
        lower = None if self.lower is None else behind(self.lower.choice)
        if self.lower is not None and lower is not None:
            times = self.dense.step / self.lower.step
            said.append(
                f"{called(self.lower)} would be {times:.3g} times as fast as dense, "
                f"but ended {_cost(lower)}."
            )
        return " ".join(said)


def called(row: Forecast) -> str:
    """The name of a choice with its density."""
    density = row.choice.density
    return row.choice.label + (f" at {percent(density)}" if density else "")


def percent(density: float) -> str:
    """A density in percent.

    >>> percent(0.001)
    '0.1 %'
    """
    return f"{100 * density:.3g} %"


def _cost(found: Behind) -> str:
    images, language = _side(found.images, "points"), _side(found.language, "%")
    return f"{images} dense on images, {language} it on language"


def _side(amount: float, unit: str) -> str:
    side = "behind" if amount >= 0 else "ahead of"
    return f"{abs(amount):.2g} {unit} {side}"


def _gains(one: Forecast, other: Forecast) -> bool:
    return other.step >= (1 + DOUBT) * one.step


def _step(row: Forecast) -> float:
    return row.step
