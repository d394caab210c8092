"""The curves of convergence.py as one SVG, for pages with a light or a dark ground."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """<style>
svg{font:12px sans-serif;background:#fff;color:#1c2024}
text{fill:currentColor}.line{stroke:currentColor;opacity:.25;fill:none}
polyline{fill:none;stroke-width:1.3}
.dense{stroke:currentColor;stroke-width:2.4}.topk{stroke:#2478c7}.gtopk{stroke:#d9730d}
.spardl{stroke:#2a9d3f}.gs-sgd{stroke:#9467bd}.deepreduce{stroke:#a07a2c}
.PowerSGD{stroke:#d6336c}
@media (prefers-color-scheme:dark){svg{background:#14181c;color:#e3e6e8}}
</style>"""
DASHES = ("none", "7 3", "2 2", "9 3 2 3", "1 4", "4 4 1 4 1 4", "14 3")
WIDTH, HEIGHT = 370, 270
LINE = 16


@dataclass(frozen=True)
class Curve:
    """A run: its label, the metric and the residual norm after every epoch."""

    label: str
    metric: Sequence[float]
    residual: Sequence[float]

    @property
    def method(self) -> str:
        return self.label.split()[0].strip(",")


@dataclass(frozen=True)
class Panel:
    """A frame with an axis of epochs and one of values."""

    left: int
    top: int
    title: str
    epochs: tuple[int, int]  # the first and the last
    values: tuple[float, float]
    scale: Callable[[float], float] = float  # math.log10 for a logarithmic axis

    def frame(self) -> str:
        """The box, its title, and ticks on both axes."""
        texts = [
            f'<text x="{self.left}" y="{self.top - 8}">{escape(self.title)}</text>',
            f'<rect class="line" x="{self.left}" y="{self.top}" width="{WIDTH}" '
            f'height="{HEIGHT}"/>',
        ]
        for value in _ticks(*self.values, self.scale):
            down = self._down(value)
            texts.append(
                f'<path class="line" d="M{self.left} {down:.1f}h{WIDTH}"/>'
                f'<text x="{self.left - 6}" y="{down + 4:.1f}" text-anchor="end">'
                f"{value:g}</text>"
            )
        texts += [
            f'<text x="{self._across(epoch):.1f}" y="{self.top + HEIGHT + 16}" '
            f'text-anchor="middle">{epoch:g}</text>'
            for epoch in _ticks(*self.epochs, float)
            if epoch == round(epoch)
        ]
        return "".join(texts)

    def line(self, curve: Curve, values: Sequence[float], dash: str) -> str:
        """A curve, where it is within the frame; beyond it, along its edge."""
        first, last = self.epochs
        points = " ".join(
            f"{self._across(epoch):.1f},{self._down(value):.1f}"
            for epoch, value in enumerate(values, 1)
            if first <= epoch <= last
        )
        return (
            f'<polyline class="{curve.method}" stroke-dasharray="{dash}" '
            f'points="{points}"/>'
        )

    def _across(self, epoch: float) -> float:
        first, last = self.epochs
        return self.left + WIDTH * (epoch - first) / max(last - first, 1)

    def _down(self, value: float) -> float:
        low, high = map(self.scale, self.values)
        inside = min(max(value, self.values[0]), self.values[1])
        return self.top + HEIGHT * (high - self.scale(inside)) / ((high - low) or 1.0)


def svg(curves: Sequence[Curve], metric: str) -> str:
    """The metric over all epochs and over the last ones, and residual norms."""
    epochs = max(len(curve.metric) for curve in curves)
    late = max(epochs - max(epochs // 5, 3), 1)
    norms = [n for curve in curves for n in curve.residual if n > 0]
    panels = [
        # The first fifth of the epochs would squeeze what is to be compared.
        (Panel(60, 40, metric, (1, epochs), _range(curves, epochs // 5)), "metric"),
        (Panel(510, 40, "the last epochs", (late, epochs), _range(curves, late)), ""),
    ]
    if norms:
        title = "norm of the residual, mean over workers"
        held = Panel(
            60, 380, title, (1, epochs), (min(norms), max(norms)), scale=math.log10
        )
        panels.append((held, "residual"))
    parts = [panel.frame() for panel, _ in panels]
    for number, (curve, dash) in enumerate(zip(curves, _dashes(curves), strict=True)):
        for panel, what in panels:
            values = curve.residual if what == "residual" else curve.metric
            if any(values):
                parts.append(panel.line(curve, values, dash))
        down = 380 + LINE * number
        parts.append(
            f'<polyline class="{curve.method}" stroke-dasharray="{dash}" '
            f'points="500,{down} 540,{down}"/><text x="548" y="{down + 4}">'
            f"{escape(curve.label)}: {curve.metric[-1]:.2f}</text>"
        )
    tall = max(380 + HEIGHT + 40, 380 + LINE * len(curves) + 20)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {tall}" '
        f'width="960" height="{tall}" role="img">{STYLE}{"".join(parts)}'
        f'<text x="60" y="{380 + HEIGHT + 34}">epochs</text></svg>\n'
    )


def _range(curves: Sequence[Curve], start: int) -> tuple[float, float]:
    shown = [value for curve in curves for value in curve.metric[max(start - 1, 0) :]]
    return min(shown), max(shown)


def _dashes(curves: Sequence[Curve]) -> list[str]:
    """One colour for each method; its variants differ in their dashes."""
    seen: dict[str, int] = {}
    dashes = []
    for curve in curves:
        number = seen[curve.method] = seen.get(curve.method, -1) + 1
        dashes.append(DASHES[number % len(DASHES)])
    return dashes


def _ticks(low: float, high: float, scale: Callable[[float], float]) -> list[float]:
    """Round numbers from low to high: about five, or 1, 2 and 5 of every decade."""
    if scale is math.log10:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        round_ones = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    else:
        rough = (high - low) / 5 or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(low / step)
        round_ones = [round((first + i) * step, 10) for i in range(12)]
    return [value for value in round_ones if low <= value <= high]
