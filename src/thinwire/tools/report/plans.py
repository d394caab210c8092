"""Forecasts on a page: `thinwire plan`."""

from collections.abc import Sequence
from html import escape
from typing import Any

from thinwire.tools.report import page
from thinwire.tools.report.bars import Bar, Row, bars, groups
from thinwire.tools.report.words import Figures, ms, number, size

PARTS = ("backward", "processor", "wire", "waiting")


def section(figures: Figures) -> str:
    """The verdict, bars of densities that held accuracy and of lower ones, a table."""
    rows = figures["forecasts"]
    safe = [row for row in rows if row["held_accuracy"]]
    lower = [row for row in rows if not row["held_accuracy"]]
    parts = [_verdict(figures), page.note(figures["setting"])]
    if safe:
        parts.append(page.section("Time and bytes of a step", _time(safe, lower)))
    if lower:
        said = "Training ended further behind plain DDP, where measured: see the table."
        parts.append(page.section("At densities below 1 %", _time(lower, safe), said))
    parts += [_parts(safe or rows), _table(rows)]
    title = f"{figures['parameters']:,} parameters, {figures['workers']} workers"
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _verdict(figures: Figures) -> str:
    rows = {row["label"]: row for row in figures["forecasts"]}
    dense, taken = rows["dense"], rows[figures["recommended"]]
    if figures["dense_is_best"]:
        step = [(ms(dense["step_s"]), "a step, plain DDP")]
        return page.verdict("Stay with plain DDP", step, figures["verdict"], use=False)
    times = dense["step_s"] / taken["step_s"]
    said = [
        (ms(taken["step_s"]), f"a step; plain DDP {ms(dense['step_s'])}"),
        (f"{times:.3g} times", "as fast as plain DDP"),
        (size(taken["bytes_sent"]), f"sent; plain DDP {size(dense['bytes_sent'])}"),
    ]
    assumed = f"Forecast {figures['assumed']}." if figures["assumed"] else "A forecast."
    why = f"{assumed} {figures['accuracy']}".strip()
    return page.verdict(f"Use {_name(taken)}", said, why, use=True)


def _time(rows: Sequence[Figures], beside: Sequence[Figures]) -> str:
    return bars(
        list(map(_row, rows)),
        ["a step, forecast", "bytes sent"],
        "Forecast steps",
        beside=list(map(_row, beside)),
    )


def _row(row: Figures) -> Row:
    return Row(
        _name(row),
        [
            Bar([row["step_s"]], ms(row["step_s"])),
            Bar([row["bytes_sent"]], size(row["bytes_sent"])),
        ],
        row["method"] != "dense",
        f"{_name(row)}: {1e3 * row['step_s']:.3f} ms a step, "
        f"{row['bytes_sent']:,} bytes sent{_ended(row)}",
    )


def _parts(rows: Sequence[Figures]) -> str:
    drawn = [
        Row(
            _name(row),
            [
                Bar(
                    [row["parts_s"][part] for part in PARTS],
                    ms(row["step_s"]),
                    None,
                    range(len(PARTS)),
                )
            ],
            row["method"] != "dense",
            f"{_name(row)}, ms: "
            + ", ".join(f"{part} {1e3 * row['parts_s'][part]:.3f}" for part in PARTS),
        )
        for row in rows
    ]
    chart = groups(dict(enumerate(PARTS))) + bars(drawn, ["a step"], "Parts of a step")
    said = "Communication that backward hides is not drawn."
    return page.section("Where the time goes", chart, said)


def _table(rows: Sequence[Figures]) -> str:
    dense: Any = next(row for row in rows if row["method"] == "dense")
    heads = ["method", "ms a step", "x dense", "MB sent"]
    heads += ["accuracy behind, points", "perplexity behind, %"]
    cells = []
    for row in rows:
        behind = row["behind_dense"]
        ended = (
            ["-", "-"]
            if behind is None
            else [f"{behind['images']:g}", f"{behind['language']:g}"]
        )
        times = dense["step_s"] / row["step_s"]
        cells.append(
            [
                _name(row),
                number(1e3 * row["step_s"]),
                f"{times:.3g}",
                number(row["bytes_sent"] / 1e6),
                *ended,
            ]
        )
    caption = (
        "x dense: times as fast as plain DDP. Behind plain DDP after training, as "
        "measured on ResNet-20 on CIFAR-10 and an LSTM on WikiText-2 with 8 workers "
        "(docs/experiments/results.md); -: not measured, less than 0: ahead."
    )
    return page.section("Figures", page.table(heads, cells, caption))


def _ended(row: Figures) -> str:
    behind = row["behind_dense"]
    if behind is None:
        return ""
    return (
        f"; training ended {behind['images']:g} points (images) and "
        f"{behind['language']:g} % (language) behind plain DDP"
    )


def _name(row: Figures) -> str:
    return "plain DDP" if row["method"] == "dense" else str(row["label"])
