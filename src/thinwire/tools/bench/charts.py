"""Charts as SVG in text: drawn for a phone's width, so that their words stay readable.

Colours are classes (`c0`, `c1`, ...) that the page defines for light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH = 340
COLOURS = 12
_ROW = 34
_BAR = 12
_LONGEST = 32  # letters of a name that leave room for its number
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 38
_HEIGHT = 260
_NEAR = 13.0  # labels closer than this are pushed apart


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, lengths one after the other, and what to write behind them."""

    name: str
    parts: Sequence[float]
    text: str
    whisker: tuple[float, float] | None = None
    colours: Sequence[int] = (0,)


@dataclass(frozen=True, slots=True)
class Point:
    """A mark with a number, which a list beside the chart explains."""

    x: float
    y: float
    number: int
    colour: int


def bars(rows: Sequence[Bar], about: str) -> str:
    """Horizontal bars, each under its name."""
    longest = max((_length(row) for row in rows), default=0.0) or 1.0
    scale = (WIDTH - 2) / longest
    height = _ROW * len(rows) + 4
    drawn = [_bar(row, _ROW * place, scale) for place, row in enumerate(rows)]
    return _svg("".join(drawn), height, about)


def scatter(points: Sequence[Point], axes: tuple[str, str], about: str) -> str:
    """Points on logarithmic axes."""
    across = _Scale.around([p.x for p in points], _LEFT, WIDTH - _RIGHT)
    up = _Scale.around([p.y for p in points], _HEIGHT - _BOTTOM, _TOP)
    drawn = [_frame(across, up, axes)]
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        x, y = across.at(point.x), up.at(point.y)
        side = _free(x, y, taken)
        drawn.append(
            f'<circle class="c{point.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<text x="{side[0]:.1f}" y="{side[1] + 4:.1f}">{point.number}</text>'
        )
    return _svg("".join(drawn), _HEIGHT, about)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    axes: tuple[str, str],
    about: str,
) -> str:
    """A line of points (x, y) for each name, on logarithmic axes."""
    every = [point for points in series.values() for point in points]
    across = _Scale.around([x for x, _ in every], _LEFT, WIDTH - _RIGHT)
    up = _Scale.around([y for _, y in every], _HEIGHT - _BOTTOM, _TOP)
    marks = sorted({x for x, _ in every})
    drawn = [_frame(across, up, axes, marks)]
    for place, points in enumerate(series.values()):
        spots = [(across.at(x), up.at(y)) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        colour = place % COLOURS
        dash = f' stroke-dasharray="{2 + 3 * (place // COLOURS)}"' * (place >= COLOURS)
        drawn.append(f'<polyline class="line l{colour}" points="{path}"{dash}/>')
        drawn += [
            f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            for x, y in spots
        ]
    return _svg("".join(drawn), _HEIGHT, about)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a number lies between two places, by its logarithm."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, numbers: Sequence[float], start: float, end: float) -> "_Scale":
        positive = [number for number in numbers if number > 0] or [1.0]
        low, high = min(positive), max(positive)
        return cls(log10(low / 1.3), log10(high * 1.3), start, end)

    def at(self, number: float) -> float:
        share = (log10(max(number, 10**self.low)) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within; more of them where there are few powers of ten."""
        powers = range(floor(self.low), ceil(self.high) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
            found = [step * 10.0**power for power in powers for step in steps]
            inside = [n for n in found if self.low <= log10(n) <= self.high]
            if len(inside) > 1:
                return inside
        return inside


def _frame(
    across: _Scale, up: _Scale, axes: tuple[str, str], marks: Sequence[float] = ()
) -> str:
    bottom, right = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    drawn = [
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up.at(y):.1f}" '
        f'y2="{up.at(y):.1f}"/><text class="end" x="{_LEFT - 5}" '
        f'y="{up.at(y) + 4:.1f}">{_plain(y)}</text>'
        for y in up.ticks()
    ]
    drawn += [
        f'<line class="grid" y1="{_TOP}" y2="{bottom}" x1="{across.at(x):.1f}" '
        f'x2="{across.at(x):.1f}"/><text class="middle" x="{across.at(x):.1f}" '
        f'y="{bottom + 15}">{_plain(x)}</text>'
        for x in marks or across.ticks()
    ]
    horizontal, vertical = map(escape, axes)
    drawn.append(
        f'<text class="middle" x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}">'
        f'{horizontal}</text><text class="middle" '
        f'transform="translate(13 {(_TOP + bottom) / 2}) rotate(-90)">{vertical}</text>'
    )
    return "".join(drawn)


def _bar(row: Bar, top: float, scale: float) -> str:
    name = row.name if len(row.name) <= _LONGEST else row.name[: _LONGEST - 1] + "…"
    drawn = [
        f'<text x="0" y="{top + 13}">{escape(name)}'
        f"<title>{escape(row.name)}</title></text>"
    ]
    drawn.append(
        f'<text class="end" x="{WIDTH}" y="{top + 13}">{escape(row.text)}</text>'
    )
    x, y = 0.0, top + 18
    for part, colour in zip(row.parts, row.colours, strict=True):
        width = part * scale
        drawn.append(
            f'<rect class="c{colour % COLOURS}" x="{x:.2f}" y="{y}" '
            f'width="{width:.2f}" height="{_BAR}"/>'
        )
        x += width
    if row.whisker is not None:
        low, high = (end * scale for end in row.whisker)
        middle = y + _BAR / 2
        drawn.append(
            f'<line class="whisker" x1="{low:.2f}" x2="{high:.2f}" y1="{middle}" '
            f'y2="{middle}"/>'
        )
    return "".join(drawn)


def _length(row: Bar) -> float:
    return max(sum(row.parts), row.whisker[1] if row.whisker else 0.0)


def _free(x: float, y: float, taken: list[tuple[float, float]]) -> tuple[float, float]:
    """Where a number can stand beside its point without touching another."""
    places = [(7, 0), (-14, 0), (-4, -10), (-4, 11), (7, -11), (7, 11), (-15, 11)]
    spots = [(x + right, y + down) for right, down in places]
    spot = next((s for s in spots if all(_apart(s, t) for t in taken)), spots[0])
    taken += [spot, (x, y)]
    return spot


def _apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return max(abs(one[0] - other[0]), abs(one[1] - other[1])) >= _NEAR


def _plain(number: float) -> str:
    """A tick without needless digits.

    >>> _plain(1000.0), _plain(0.5), _plain(20_000.0)
    ('1000', '0.5', '20000')
    """
    return f"{number:.10g}"


def _svg(drawn: str, height: float, about: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(about)}">{drawn}</svg>'
    )
