"""One page of figures: HTML that needs nothing else, for a phone, light or dark."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from thinwire.tools.bench import charts
from thinwire.tools.bench.files import KIND
from thinwire.tools.bench.page import STYLE, legend, section, table
from thinwire.tools.bench.torch_methods import DENSE

Figures = Mapping[str, Any]

# What is waiting, what is work, what is unknown: the order of the colours.
PHASES = (
    *("guard", "accumulate", "select", "encode", "sketch", "merge", "write"),
    *("agree", "exchange", "rest", "library"),
)

_WORDS = """
<p>Times are of the slowest rank, from a common start until every rank has the mean;
medians over the repetitions, and quartiles. In every run all methods took turns in an
order drawn anew for each repetition. Each was verified first: all ranks get the same
bits, and delivered plus residual add up to the gradients.</p>"""

_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def page(every: Sequence[Figures]) -> str:
    """The whole report of one or more sets of figures."""
    reductions = [each for each in every if each[KIND] == "reduce"]
    trainings = [each for each in every if each[KIND] == "train"]
    body = [*_scaling(reductions), *map(_reduction, reductions)]
    body += map(_training, trainings)
    body += [_plan(each) for each in every if each[KIND] == "plan"]
    machines = dict.fromkeys(str(each.get("machine", "")) for each in every)
    footer = "<br>".join(escape(machine) for machine in machines)
    title = "thinwire bench"
    return (
        f"{_HEAD}<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{_WORDS if reductions else ''}{''.join(body)}"
        f"<footer><p>{footer}</p></footer></main></body></html>\n"
    )


def setting(figures: Figures) -> str:
    """What was measured, in a line."""
    return (
        f"{figures['size']:,} elements, density {100 * figures['density']:g} %, "
        f"{figures['ranks']} ranks, {_link(figures)}"
    )


def verdict(figures: Figures) -> str:
    """One sentence: the fastest method, and how much faster than dense it is."""
    rows = sorted(figures["rows"], key=lambda row: row["seconds"])
    dense = next(row for row in rows if row["method"] == DENSE)
    best = rows[0]
    if best is dense:
        return f"Dense is best here: {_ms(dense['seconds'])}."
    times = dense["seconds"] / best["seconds"]
    return (
        f"Fastest: {best['label']} with {_ms(best['seconds'])}, {times:.3g} times "
        f"faster than dense ({_ms(dense['seconds'])})."
    )


def _reduction(figures: Figures) -> str:
    rows = sorted(figures["rows"], key=lambda row: row["seconds"])
    parts = [
        f"<p class=verdict>{escape(verdict(figures))}</p>",
        *(f"<p class=note>{escape(note)}</p>" for note in _notes(figures)),
        section("Time", charts.bars(_times(rows), "Median time of every method")),
        _against_bytes(rows),
        _phases(rows),
        section(
            "Compression error",
            charts.bars(_errors(rows), "Error of one reduction of every method"),
            "|delivered - mean| / |mean| of one reduction with nothing remembered, on "
            "these made-up gradients. What is not delivered stays with its sender and "
            "comes later, except where a method rounds without remembering.",
        ),
        _figures_table(rows, figures),
    ]
    return f"<section><h2>{escape(setting(figures))}</h2>{''.join(parts)}</section>"


def _times(rows: Sequence[Figures]) -> list[charts.Bar]:
    return [
        charts.Bar(
            row["label"],
            [row["seconds"]],
            _ms(row["seconds"]),
            (row["low"], row["high"]),
            [8 if row.get("peer") else 0],
        )
        for row in rows
    ]


def _errors(rows: Sequence[Figures]) -> list[charts.Bar]:
    ordered = sorted(rows, key=lambda row: row["error"])
    return [
        charts.Bar(r["label"], [r["error"]], f"{r['error']:.2g}", None, [3])
        for r in ordered
    ]


def _against_bytes(rows: Sequence[Figures]) -> str:
    points = [
        charts.Point(_nbytes(row) / 1e6, 1e3 * row["seconds"], number, number % 12)
        for number, row in enumerate(rows, 1)
        if _nbytes(row) > 0
    ]
    if not points:
        return ""
    chart = charts.scatter(points, ("MB sent", "ms"), "Time against bytes sent")
    names = {
        str(number): f"{row['label']}: {_mb(_nbytes(row))}, {_ms(row['seconds'])}"
        for number, row in enumerate(rows, 1)
    }
    said = "Bytes the busiest rank sends; both axes logarithmic. Down and left is good."
    return section("Time against bytes", chart + legend(names), said)


def _phases(rows: Sequence[Figures]) -> str:
    present = [p for p in PHASES if any(row["phases"].get(p, 0) > 0 for row in rows)]
    bars = [
        charts.Bar(
            row["label"],
            [row["phases"].get(phase, 0.0) for phase in present],
            _ms(sum(row["phases"].values())),
            None,
            [PHASES.index(phase) for phase in present],
        )
        for row in rows
    ]
    chart = charts.bars(bars, "Time of every method by phase")
    named = {f"c{PHASES.index(phase)}": phase for phase in present}
    said = (
        "Means over the ranks. agree and exchange are waiting, for the wire and for "
        "other ranks; library is all of a method that is PyTorch's own."
    )
    return section("Phases", chart + legend(named, swatches=True), said)


def _figures_table(rows: Sequence[Figures], figures: Figures) -> str:
    dense = next(row for row in rows if row["method"] == DENSE)
    forecast = any(row["forecast"] is not None for row in rows)
    heads = ["method", "median ms", "quartiles", "times faster than dense", "cpu ms"]
    heads += ["MB sent", "times the floor", "error"]
    heads += [f"forecast ms at {_rate(figures['rate'])}"] if forecast else []
    cells = [_row(row, dense, figures["floor"]) for row in rows]
    if figures["place"] == "lab":
        heads.append("nominal ms of these bytes")
        for row, line in zip(rows, cells, strict=True):
            line.append(_number(8 * _nbytes(row) / figures["rate"]))
    caption = (
        f"{figures['repeats']} repetitions, fewer of slow methods; {figures['date']}. "
        f"Floor: {_mb(figures['floor'])}."
    )
    return section("Figures", table(heads, cells, caption))


def _row(row: Figures, dense: Figures, floor: float) -> list[str]:
    cells = [
        row["label"],
        _number(row["seconds"]),
        f"{_number(row['low'])} - {_number(row['high'])}",
        f"{dense['seconds'] / row['seconds']:.3g}",
        _number(row["cpu"]),
        f"{_nbytes(row) / 1e6:.3g}",
        f"{_nbytes(row) / floor:.3g}" if floor else "-",
        f"{row['error']:.2g}",
    ]
    forecast = row["forecast"]
    return cells if forecast is None else [*cells, _number(forecast)]


def _notes(figures: Figures) -> Iterator[str]:
    if figures["place"] == "loopback":
        yield (
            "The link is not shaped: local processes over loopback, which is no slow "
            "network."
        )
        if figures["rate"]:
            yield (
                "The forecast is computed: a worker's processor time and its bytes at "
                f"{_rate(figures['rate'])}, as if each had a processor of its own."
            )
    if figures["place"] == "lab":
        yield (
            "Links of a lab on one machine. Latency is not shaped, and messages "
            "smaller than a link's burst cross at once: compare with the nominal time."
        )
    if figures["ranks_per_machine"] > 1:
        yield (
            f"{figures['ranks_per_machine']} ranks share the processors of one machine."
        )


def _scaling(reductions: Sequence[Figures]) -> Iterator[str]:
    """A chart for each setting that was measured with several numbers of ranks."""
    same_setting: dict[str, list[Figures]] = {}
    for each in reductions:
        name = (
            f"{each['size']:,} elements, density {100 * each['density']:g} %, "
            f"{_link(each)}"
        )
        same_setting.setdefault(name, []).append(each)
    for name, group in same_setting.items():
        if len({each["ranks"] for each in group}) > 1:
            yield section(f"Scaling: {name}", _scaling_chart(group), level=2)


def _scaling_chart(group: Sequence[Figures]) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for each in sorted(group, key=lambda figures: figures["ranks"]):
        for row in each["rows"]:
            spot = (float(each["ranks"]), 1e3 * row["seconds"])
            series.setdefault(row["label"], []).append(spot)
    chart = charts.lines(series, ("ranks", "ms"), "Time against number of ranks")
    named = {f"l{n % charts.COLOURS} {n}": name for n, name in enumerate(series)}
    return chart + legend(named, swatches=True)


def _training(figures: Figures) -> str:
    rows = sorted(figures["rows"], key=lambda row: row["seconds"])
    heads = ["method", "ms a step", "quartiles", "MB sent a step"]
    cells = [
        [
            row["label"],
            _number(row["seconds"]),
            f"{_number(row['low'])} - {_number(row['high'])}",
            "-" if row["sent"] is None else f"{row['sent'] / 1e6:.3g}",
        ]
        for row in rows
    ]
    title = (
        f"Training {figures['model']}: {figures['parameters']:,} parameters, "
        f"{figures['ranks']} ranks, {_link(figures)}"
    )
    chart = charts.bars(_times(rows), "Median time of a training step")
    caption = f"Forward, backward and optimizer; {figures['date']}."
    parts = section("A step", chart) + section("Figures", table(heads, cells, caption))
    return f"<section><h2>{escape(title)}</h2>{parts}</section>"


def _plan(figures: Figures) -> str:
    rows = [
        [row["label"], _number(row["step_s"]), f"{row['bytes_sent'] / 1e6:.3g}"]
        for row in figures["forecasts"]
    ]
    heads = ["method", "ms a step", "MB sent a step"]
    said = f"<p class=verdict>{escape(figures['verdict'])}</p>"
    return said + section("Forecast", table(heads, rows, figures["setting"]))


def _link(figures: Figures) -> str:
    if figures["place"] == "loopback":
        return "loopback"
    if figures["place"] == "lab" or figures["rate"]:
        return f"links of {_rate(figures['rate'])} in a lab"
    return "a network of the user's"


def _rate(bits: float) -> str:
    scale = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]
    unit, name = next(((u, n) for u, n in scale if bits >= u), (1.0, "bit/s"))
    return f"{bits / unit:g} {name}"


def _nbytes(row: Figures) -> float:
    return float(row["sent"] if row["wire"] is None else row["wire"])


def _ms(seconds: float) -> str:
    return f"{_number(seconds)} ms"


def _number(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3g} MB"
