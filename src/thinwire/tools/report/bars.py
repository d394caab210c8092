"""Bars as HTML, which fit any width: a row for each method, under its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Bar:
    """Lengths one after the other, and what to write behind them.

    One length has the colour of its row; several have those of their groups. `spread`
    is where quartiles are drawn.
    """

    lengths: Sequence[float]
    text: str
    spread: tuple[float, float] | None = None
    groups: Sequence[int] = ()

    @property
    def end(self) -> float:
        """How far it reaches."""
        return max(sum(self.lengths), self.spread[1] if self.spread else 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A name and its bars; `exact` is shown to a pointer, or where it has focus."""

    name: str
    bars: Sequence[Bar]
    ours: bool
    exact: str


def bars(
    rows: Sequence[Row],
    heads: Sequence[str],
    about: str,
    *,
    beside: Sequence[Row] = (),
) -> str:
    """One or two bars in a row, each kind to a scale of its own.

    The scale is that of the rows `beside`, too, which another chart shows.
    """
    scales = [
        max((row.bars[place].end for row in (*rows, *beside)), default=0.0) or 1.0
        for place in range(len(heads))
    ]
    top = "".join(f"<span>{escape(head)}</span>" for head in ("", *heads))
    drawn = "".join(_row(row, scales) for row in rows)
    return (
        f'<div class="bars{" two" * (len(heads) > 1)}" role="list" '
        f'aria-label="{escape(about)}"><div class="top">{top}</div>{drawn}</div>'
    )


def groups(names: Mapping[int, str]) -> str:
    """What the colours of groups stand for."""
    items = "".join(
        f'<li><i class="g{number}"></i>{escape(name)}</li>'
        for number, name in names.items()
    )
    return f'<ul class="groups">{items}</ul>'


def _row(row: Row, scales: Sequence[float]) -> str:
    side = "ours" if row.ours else "theirs"
    drawn = "".join(
        _bar(bar, scale) for bar, scale in zip(row.bars, scales, strict=True)
    )
    return (
        f'<div class="row {side}" role="listitem" tabindex="0">'
        f'<span class="name">{escape(row.name)}</span>{drawn}'
        f'<span class="tip">{escape(row.exact)}</span></div>'
    )


def _bar(bar: Bar, scale: float) -> str:
    classes = [f"g{group}" for group in bar.groups] or ["fill"] * len(bar.lengths)
    parts = "".join(
        f'<i class="{each}" style="width:{100 * length / scale:.2f}%"></i>'
        for each, length in zip(classes, bar.lengths, strict=True)
        if length > 0
    )
    if bar.spread is not None:
        low, high = (100 * each / scale for each in bar.spread)
        parts += f'<u style="left:{low:.2f}%;width:{high - low:.2f}%"></u>'
    return (
        f'<span class="bar">{parts}</span><span class="num">{escape(bar.text)}</span>'
    )
