"""Timed training steps on a page: `thinwire bench train`."""

from html import escape

from thinwire.tools.report import page
from thinwire.tools.report.judgement import Judgement
from thinwire.tools.report.timed import by_time, time_and_bytes, times
from thinwire.tools.report.words import (
    Figures,
    dense_of,
    link,
    nbytes,
    number,
)


def section(figures: Figures) -> str:
    """The verdict, bars and a table of a model's steps."""
    rows = by_time(figures)
    dense = dense_of(rows)
    title = (
        f"Training {figures['model']}: {figures['parameters']:,} parameters, "
        f"{figures['ranks']} ranks, {link(figures)}"
    )
    cells = [
        [
            *times(row, dense),
            "-" if nbytes(row) is None else number((nbytes(row) or 0.0) / 1e6),
        ]
        for row in rows
    ]
    heads = ["method", "ms a step", "quartiles", "x dense", "MB sent a step"]
    caption = f"Forward, backward and optimizer; {figures['date']}."
    parts = (
        Judgement.of(rows).drawn("a step"),
        time_and_bytes(rows, "a step"),
        page.section("Figures", page.table(heads, cells, caption)),
    )
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"
