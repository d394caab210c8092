"""The picture of the demo: held-out loss against seconds, as one SVG file."""

from collections.abc import Iterable, Sequence
from html import escape
from math import floor, log10

from thinwire.tools.demo import methods
from thinwire.tools.demo.loop import Run

_WIDTH, _HEIGHT = 760, 430
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 620, 62, 372
_LINE = 17.0  # between labels
_TICKS = 6

_STYLE = """
svg{font:14px system-ui,sans-serif;background:#fff;fill:#1d2026}
.title{font-size:18px;font-weight:600}.soft{fill:#5b6370}
.grid{stroke:#dfe2e7}.goal{stroke:#5b6370;stroke-dasharray:4 4}
path{fill:none;stroke-width:2.5;stroke-linejoin:round}
.torch{stroke:#8a93a3}.ours{stroke:#0b6bcb}.torch2{stroke:#c27803}.ours2{stroke:#4aa3a2}
text.torch{fill:#5f6877;stroke:none}text.ours{fill:#0b6bcb;stroke:none;font-weight:600}
text.torch2{fill:#a16207;stroke:none}text.ours2{fill:#2f7f7e;stroke:none}
@media(prefers-color-scheme:dark){svg{background:#14161a;fill:#eceef2}
.soft{fill:#a2aab8}.grid{stroke:#2b3038}text.torch{fill:#a2aab8}
text.ours{fill:#5aa9f5}.ours{stroke:#5aa9f5}text.torch2{fill:#e0a63c}
text.ours2{fill:#6cc5c3}}
"""


def draw(runs: Sequence[Run], title: str, about: str) -> str:
    """The file's content; the first plain DDP's last loss is a line across."""
    across = _Scale(0.0, max(run.seconds for run in runs), _LEFT, _RIGHT)
    # Where every method starts says nothing: the picture begins at the first look.
    first = [run.looks[min(1, len(run.looks) - 1)].loss for run in runs]
    lowest = min(look.loss for run in runs for look in run.looks)
    highest = max(*first, lowest + 1e-3)
    room = (highest - lowest) / 20
    up = _Scale(lowest - room, highest + room, _BOTTOM, _TOP)
    drawn = [*_frame(across, up), *_goal(runs, up)]
    drawn += [_line(run, name, across, up) for run, name in _coloured(runs)]
    drawn += _labels(runs, across, up)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<clipPath id="plot"><rect x="{_LEFT}" y="{_TOP}" '
        f'width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}"/></clipPath>'
        f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>'
        f'<text class="soft" x="{_LEFT}" y="47">{escape(about)}</text>'
        f"{''.join(drawn)}</svg>\n"
    )


class _Scale:
    """Where a number lies between two places."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end

    def at(self, number: float) -> float:
        share = (number - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round numbers within, about as many as there is room for."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** floor(log10(rough))
        step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
        number = step * -floor(-self.low / step)
        found = []
        while number <= self.high:
            found.append(round(number, 10))
            number += step
        return found


def _coloured(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """A colour for each: PyTorch's greys first, thinwire's best in blue."""
    ours = [run for run in runs if not methods.is_of_torch(run.method)]
    best = min(ours, key=lambda run: run.loss, default=None)
    found = []
    for run in runs:
        name = "ours" if run is best else "ours2"
        if methods.is_of_torch(run.method):
            name = "torch" if run.method == methods.PLAIN else "torch2"
        found.append((run, name))
    return found


def _frame(across: _Scale, up: _Scale) -> Iterable[str]:
    for y in up.ticks():
        place = f"{up.at(y):.1f}"
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{place}" '
            f'y2="{place}"/><text class="soft" text-anchor="end" x="{_LEFT - 8}" '
            f'y="{up.at(y) + 5:.1f}">{y:g}</text>'
        )
    for x in across.ticks():
        yield (
            f'<text class="soft" text-anchor="middle" x="{across.at(x):.1f}" '
            f'y="{_BOTTOM + 20}">{x:g}</text>'
        )
    yield (
        f'<text class="soft" text-anchor="middle" x="{(_LEFT + _RIGHT) / 2}" '
        f'y="{_HEIGHT - 14}">seconds of training</text>'
    )


def _goal(runs: Sequence[Run], up: _Scale) -> Iterable[str]:
    for run in runs:
        if run.method == methods.PLAIN:
            y = f"{up.at(run.loss):.1f}"
            yield f'<line class="goal" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'


def _line(run: Run, name: str, across: _Scale, up: _Scale) -> str:
    places = [
        f"{across.at(look.seconds):.1f} {up.at(look.loss):.1f}" for look in run.looks
    ]
    return f'<path class="{name}" clip-path="url(#plot)" d="M{"L".join(places)}"/>'


def _labels(runs: Sequence[Run], across: _Scale, up: _Scale) -> Iterable[str]:
    """Each at the end of its line, moved down where two would touch."""
    order = sorted(_coloured(runs), key=lambda each: up.at(each[0].loss))
    least = 0.0
    for run, name in order:
        y = max(up.at(run.loss) + 5, least)
        least = y + _LINE
        text = f"{methods.label(run.method)} {run.loss:.2f}"
        yield f'<text class="{name}" x="{_RIGHT + 8}" y="{y:.1f}">{escape(text)}</text>'
