"""Curves as SVG: several lines over one axis, each with its name at its end."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from thinwire.tools.report.axis import Axis, plain
from thinwire.tools.report.style import variables

_LETTER, _NARROW, _WIDE = 9.0, 6.0, 13.0  # of bold ones at 13 pixels, seldom more
_LINE = 17.0  # names are at least this far apart
_LEFT, _TOP, _BOTTOM = 54.0, 14.0, 44.0
_HEADING = 42.0  # the height of two lines
_LEADER = 18.0  # from the end of a line to its name
_SIZES = {"wide": (920, 380), "narrow": (340, 300)}  # by their classes
_MOST_MARKS = 60  # points of a line that say their numbers
_WIDER = "mwMW@%OQGD"
_FEW = 8
_DASHES = ("none", "7 3", "2 3", "10 3 2 3", "1 5", "14 4")

_STYLE = f"""{variables(".curves")}
.curves text{{font:13px system-ui,sans-serif;fill:var(--ink)}}
.curves .soft{{fill:var(--soft)}}.curves .end{{text-anchor:end}}
.curves .middle{{text-anchor:middle}}.curves .ground{{fill:var(--page)}}
.curves .rule{{stroke:var(--rule);stroke-width:1}}
.curves .title{{font-size:18px;font-weight:600}}
.curves .level{{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4}}
.curves .leader{{stroke:var(--soft);stroke-width:1;stroke-dasharray:1 3}}
.curves polyline{{fill:none;stroke-width:2.2;stroke-linejoin:round}}
.curves polyline.ours{{stroke:var(--ours)}}
.curves polyline.theirs{{stroke:var(--theirs)}}
.curves circle{{fill:transparent}}
.curves .dot{{pointer-events:none}}.curves .ours.dot{{fill:var(--ours)}}
.curves .theirs.dot{{fill:var(--theirs)}}
.curves .name{{font-weight:600}}
.curves text.ours{{fill:var(--ours)}}.curves text.theirs{{fill:var(--theirs)}}
.curves circle.ours:hover{{fill:var(--ours)}}
.curves circle.theirs:hover{{fill:var(--theirs)}}"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points (x, y); `ours` gives its colour."""

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


def curves(  # noqa: PLR0913 - what and how to draw, the latter by keyword
    series: Sequence[Series],
    axes: tuple[str, str],
    about: str,
    *,
    size: tuple[int, int] = (860, 400),
    log: tuple[bool, bool] = (False, False),
    heading: tuple[str, str] = ("", ""),
    level: float | None = None,
) -> str:
    """One SVG that needs nothing besides, for a file or within a page.

    `axes` are the words below and beside it, `about` says to a screen reader what it
    shows, `log` makes an axis logarithmic. `heading` is a title and a line below it,
    `level` a number that has a line across. A pointer over a line gets exact numbers.
    """
    shown = [each for each in series if each.points]
    width, height = size
    room = _room([each.name for each in shown], width)
    xs = [x for each in shown for x, _ in each.points]
    levels = [] if level is None else [level]
    ys = [y for each in shown for _, y in each.points] + levels
    top = _TOP + (_HEADING if any(heading) else 0.0)
    across = Axis.around(xs, _LEFT, width - room, log=log[0])
    up = Axis.around(ys, height - _BOTTOM, top, log=log[1])
    # Where few places across were measured, these are the ones to name.
    places = sorted(set(xs))
    few = log[0] and len(places) <= _FEW
    drawn = [_heading(*heading), _frame(across, up, axes, places if few else ())]
    drawn += [_across(each, across, up) for each in levels]
    drawn += [_line(*each, across, up) for each in _dashed(shown)]
    drawn += _names(shown, across, up, room)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">'
        f"<style>{_STYLE}</style>"
        f'<rect class="ground" width="{width}" height="{height}"/>'
        f"{''.join(drawn)}</svg>"
    )


def both_sizes(
    series: Sequence[Series],
    axes: tuple[str, str],
    about: str,
    *,
    log: tuple[bool, bool] = (False, False),
) -> str:
    """A chart for a wide page and one for a phone, of which one is shown."""
    drawn = {
        name: curves(series, axes, about, size=size, log=log)
        for name, size in _SIZES.items()
    }
    return "".join(f'<div class="{name}">{each}</div>' for name, each in drawn.items())


def _room(names: Sequence[str], width: int) -> float:
    """For names at the right: two fifths of the picture at most."""
    longest = max(map(_long, names), default=0.0)
    return min(_LEADER + 6 + longest, 0.4 * width)


def _long(name: str) -> float:
    """How wide a name is, about: fonts differ."""
    return sum(
        _NARROW
        if letter in "iljt.,:;|!'() "
        else _WIDE
        if letter in _WIDER
        else _LETTER
        for letter in name
    )


def _fitting(name: str, room: float) -> str:
    if _long(name) <= room:
        return name
    while name and _long(name) + _WIDE > room:
        name = name[:-1]
    return name + "…"


def _frame(
    across: Axis, up: Axis, axes: tuple[str, str], places: Sequence[float]
) -> str:
    bottom = up.start
    drawn = [
        f'<line class="rule" x1="{_LEFT}" x2="{across.end:.1f}" y1="{up.at(y):.1f}" '
        f'y2="{up.at(y):.1f}"/><text class="end soft" x="{_LEFT - 6}" '
        f'y="{up.at(y) + 4:.1f}">{plain(y)}</text>'
        for y in up.ticks()
    ]
    most = max(2, int((across.end - across.start) / 70))
    drawn += [
        f'<line class="rule" y1="{bottom}" y2="{bottom + 4}" x1="{across.at(x):.1f}" '
        f'x2="{across.at(x):.1f}"/><text class="middle soft" x="{across.at(x):.1f}" '
        f'y="{bottom + 18}">{plain(x)}</text>'
        for x in places or across.ticks(most)
    ]
    below, beside = map(escape, axes)
    drawn.append(
        f'<text class="middle soft" x="{(across.start + across.end) / 2:.1f}" '
        f'y="{bottom + 37}">{below}</text><text class="middle soft" '
        f'transform="translate(12 {(up.start + up.end) / 2:.1f}) rotate(-90)">'
        f"{beside}</text>"
    )
    return "".join(drawn)


def _heading(title: str, below: str) -> str:
    if not (title or below):
        return ""
    return (
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>'
        f'<text class="soft" x="{_LEFT}" y="44">{escape(below)}</text>'
    )


def _across(level: float, across: Axis, up: Axis) -> str:
    y = f"{up.at(level):.1f}"
    return f'<line class="level" x1="{_LEFT}" x2="{across.end:.1f}" y1="{y}" y2="{y}"/>'


def _colour(one: Series) -> str:
    return "ours" if one.ours else "theirs"


def _dashed(every: Sequence[Series]) -> Iterator[tuple[Series, str]]:
    """Lines of one colour differ by their dashes."""
    drawn = Counter[bool]()
    for each in every:
        yield each, _DASHES[drawn[each.ours] % len(_DASHES)]
        drawn[each.ours] += 1


def _line(one: Series, dash: str, across: Axis, up: Axis) -> str:
    colour = _colour(one)
    spots = [(across.at(x), up.at(y), x, y) for x, y in one.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in spots)
    step = -(-len(spots) // _MOST_MARKS)
    marked = [*spots[:-1:step], spots[-1]]
    x, y, *_ = spots[-1]
    return (
        f'<polyline class="{colour}" stroke-dasharray="{dash}" points="{path}"/>'
        f'<circle class="{colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        + "".join(
            f'<circle class="{colour}" cx="{left:.1f}" cy="{top:.1f}" r="5">'
            f"<title>{escape(one.name)}: {plain(x)}, {plain(y)}</title></circle>"
            for left, top, x, y in marked
        )
    )


def _names(every: Sequence[Series], across: Axis, up: Axis, room: float) -> list[str]:
    """Names beside the ends of their lines, apart from one another."""
    left = across.end + _LEADER
    ends = [
        (across.at(each.points[-1][0]), up.at(each.points[-1][1])) for each in every
    ]
    tops = apart([y for _, y in ends], _LINE, (up.end, up.start))
    drawn = []
    for each, (x, y), top in zip(every, ends, tops, strict=True):
        name = _fitting(each.name, room - _LEADER)
        drawn.append(
            f'<line class="leader" x1="{x + 5:.1f}" y1="{y:.1f}" x2="{left - 3:.1f}" '
            f'y2="{top:.1f}"/><text class="name {_colour(each)}" x="{left:.1f}" '
            f'y="{top + 4:.1f}">'
            f"{escape(name)}<title>{escape(each.name)}</title></text>"
        )
    return drawn


def apart(
    places: Sequence[float], least: float, within: tuple[float, float]
) -> list[float]:
    """Places moved as little as needed to be `least` apart, in the same order.

    >>> apart([10.0, 12.0, 50.0], 10.0, (0.0, 100.0))
    [6.0, 16.0, 50.0]
    >>> apart([98.0, 99.0], 10.0, (0.0, 100.0))
    [90.0, 100.0]
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    groups: list[list[float]] = []  # of neighbours that touch: their sum, their count
    for number in order:
        groups.append([places[number], 1])
        while len(groups) > 1 and _overlap(groups[-2], groups[-1], least):
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    moved = [top for group in groups for top in _spread(group, least)]
    low, high = within
    for index, top in enumerate(moved):
        moved[index] = max(top, low + least * index)
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], high - least * (len(moved) - 1 - index))
    found = dict(zip(order, moved, strict=True))
    return [found[number] for number in range(len(places))]


def _overlap(one: Sequence[float], other: Sequence[float], least: float) -> bool:
    return _spread(other, least)[0] - _spread(one, least)[-1] < least


def _spread(group: Sequence[float], least: float) -> list[float]:
    """Around the middle of a group."""
    total, count = group[0], int(group[1])
    first = total / count - least * (count - 1) / 2
    return [first + least * number for number in range(count)]
