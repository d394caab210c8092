"""What reductions and training steps have in common: bars of time and bytes."""

from collections.abc import Sequence

from thinwire.tools.report import page
from thinwire.tools.report.bars import Bar, Row, bars
from thinwire.tools.report.words import (
    Figures,
    dense_of,
    ms,
    name_of,
    nbytes,
    number,
    size,
)


def by_time(figures: Figures) -> list[Figures]:
    """The fastest first."""
    return sorted(figures["rows"], key=lambda row: row["seconds"])


def time_and_bytes(rows: Sequence[Figures], what: str) -> str:
    """Two bars for every method; those of ours have a colour of their own."""
    dense = dense_of(rows)
    sent = any(nbytes(row) is not None for row in rows)
    heads = [f"{what}: median, quartiles"] + ["bytes sent"] * sent
    drawn = [
        Row(
            name_of(row),
            _bars(row, sent=sent),
            not row.get("peer"),
            _exact(row, dense),
        )
        for row in rows
    ]
    said = (
        "Ours in colour, PyTorch's in grey. Bytes are those of the busiest rank."
        if sent
        else "Ours in colour, PyTorch's in grey."
    )
    return page.section("Time and bytes", bars(drawn, heads, heads[0]), said)


def times(row: Figures, dense: Figures) -> list[str]:
    """Cells of a table: the name, the median, the quartiles, and times dense."""
    return [
        name_of(row),
        number(1e3 * row["seconds"]),
        f"{number(1e3 * row['low'])} - {number(1e3 * row['high'])}",
        f"{dense['seconds'] / row['seconds']:.3g}",
    ]


def _bars(row: Figures, *, sent: bool) -> list[Bar]:
    found = [Bar([row["seconds"]], ms(row["seconds"]), (row["low"], row["high"]))]
    if sent:
        found.append(Bar([nbytes(row) or 0.0], size(nbytes(row))))
    return found


def _exact(row: Figures, dense: Figures) -> str:
    said = [
        f"{row['label']}: {1e3 * row['seconds']:.3f} ms, quartiles "
        f"{1e3 * row['low']:.3f} and {1e3 * row['high']:.3f}",
        f"{dense['seconds'] / row['seconds']:.3g} times as fast as plain DDP",
    ]
    if nbytes(row) is not None:
        said.append(f"{nbytes(row):,.0f} bytes sent")
    if "cpu" in row:
        said.append(f"{1e3 * row['cpu']:.3f} ms of a processor")
    return "; ".join(said)
