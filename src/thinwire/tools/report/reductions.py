"""Whole reductions on a page: `thinwire bench reduce`."""

from collections.abc import Iterator, Sequence
from html import escape

from thinwire.tools.report import page
from thinwire.tools.report.bars import Bar, Row, bars, groups
from thinwire.tools.report.curves import Series, both_sizes
from thinwire.tools.report.judgement import Judgement
from thinwire.tools.report.timed import by_time, time_and_bytes, times
from thinwire.tools.report.words import (
    Figures,
    dense_of,
    link,
    ms,
    name_of,
    nbytes,
    number,
    percent,
    rate,
    size,
)

# Every phase that a method reports is in one group.
GROUPS = {
    "remember and select": ("accumulate", "select", "sketch"),
    "encode and merge": ("encode", "merge", "write"),
    "exchange": ("exchange",),
    "check for bad values": ("guard", "agree"),
    "the rest": ("rest",),
}

_WORDS = (
    "Times are of the slowest rank, from a common start until every rank has the mean. "
    "All methods took turns in an order drawn anew for each repetition. Each was "
    "verified first: all ranks get the same bits, and delivered plus remembered add up "
    "to the gradients."
)


def sections(every: Sequence[Figures]) -> Iterator[str]:
    """Each setting; then how time grows with ranks, where that was measured."""
    yield from map(_section, every)
    yield from _scaling(every)
    if every:
        yield page.note(_WORDS)


def _section(figures: Figures) -> str:
    rows = by_time(figures)
    title = (
        f"{figures['size']:,} elements, density {percent(figures['density'])}, "
        f"{figures['ranks']} ranks, {link(figures)}"
    )
    parts = [
        Judgement.of(rows).drawn("a reduction"),
        *map(page.note, _notes(figures)),
        time_and_bytes(rows, "a reduction"),
        _phases(rows),
        _table(rows, figures),
    ]
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _phases(rows: Sequence[Figures]) -> str:
    """Where the time of our methods goes; PyTorch's do not say."""
    shown = [row for row in rows if not row.get("peer") and row["phases"]]
    if not shown:
        return ""
    drawn = [
        Row(name_of(row), [_grouped(row)], ours=True, exact=_exact_phases(row))
        for row in shown
    ]
    head = "a reduction, mean over the ranks"
    chart = groups(dict(enumerate(GROUPS))) + bars(drawn, [head], "Time by phase")
    said = "Exchange is waiting, for the wire and for other ranks."
    return page.section("Where the time goes", chart, said)


def _grouped(row: Figures) -> Bar:
    phases = row["phases"]
    found = [sum(phases.get(each, 0.0) for each in named) for named in GROUPS.values()]
    known = {each for named in GROUPS.values() for each in named}
    found[-1] += sum(each for name, each in phases.items() if name not in known)
    return Bar(found, ms(sum(found)), None, range(len(GROUPS)))


def _exact_phases(row: Figures) -> str:
    said = [f"{name} {1e3 * each:.3f}" for name, each in row["phases"].items() if each]
    return f"{row['label']}, ms: {', '.join(said)}"


def _table(rows: Sequence[Figures], figures: Figures) -> str:
    dense, floor = dense_of(rows), figures["floor"]
    forecast = any(row["forecast"] is not None for row in rows)
    heads = ["method", "median ms", "quartiles", "x dense", "cpu ms", "MB sent"]
    heads += ["x floor"]
    heads += [f"forecast ms at {rate(figures['rate'])}"] if forecast else []
    lab = figures["place"] == "lab"
    heads += ["nominal ms of these bytes"] if lab else []
    cells = []
    for row in rows:
        sent = nbytes(row) or 0.0
        line = [
            *times(row, dense),
            number(1e3 * row["cpu"]),
            number(sent / 1e6),
            f"{sent / floor:.3g}" if floor else "-",
        ]
        if forecast:
            ahead = row["forecast"]
            line.append("-" if ahead is None else number(1e3 * ahead))
        line += [number(8e3 * sent / figures["rate"])] if lab else []
        cells.append(line)
    caption = (
        "x dense: times as fast as plain DDP. x floor: bytes over the fewest "
        f"possible, {size(floor)}. {figures['repeats']} repetitions, fewer of slow "
        f"methods; {figures['date']}."
    )
    return page.section("Figures", page.table(heads, cells, caption))


def _notes(figures: Figures) -> Iterator[str]:
    if figures["place"] == "loopback":
        yield (
            "The link is not shaped: local processes over loopback, which is no slow "
            "network."
        )
        if figures["rate"]:
            yield (
                "The forecast is computed: a worker's processor time and its bytes at "
                f"{rate(figures['rate'])}, as if each had a processor of its own."
            )
    if figures["place"] == "lab":
        late = figures.get("delay", 0.0)
        latency = (
            f"Every message is {ms(late)} late" if late else "Latency is not shaped"
        )
        yield (
            f"Links of a lab on one machine. {latency}, and messages smaller than a "
            "link's burst cross at once: compare with the nominal time."
        )
    if figures["ranks_per_machine"] > 1:
        yield (
            f"{figures['ranks_per_machine']} ranks share the processors of one machine."
        )


def _scaling(every: Sequence[Figures]) -> Iterator[str]:
    """A chart for each setting that was measured with several numbers of ranks."""
    same: dict[str, list[Figures]] = {}
    for each in every:
        density = percent(each["density"])
        name = f"{each['size']:,} elements, density {density}, {link(each)}"
        same.setdefault(name, []).append(each)
    for name, group in same.items():
        if len({each["ranks"] for each in group}) > 1:
            yield page.section(f"Scaling: {name}", _scaling_chart(group))


def _scaling_chart(group: Sequence[Figures]) -> str:
    spots: dict[str, list[tuple[float, float]]] = {}
    ours: dict[str, bool] = {}
    for each in sorted(group, key=lambda figures: figures["ranks"]):
        for row in each["rows"]:
            name = name_of(row)
            ours[name] = not row.get("peer")
            spots.setdefault(name, []).append((each["ranks"], 1e3 * row["seconds"]))
    series = [Series(name, points, ours[name]) for name, points in spots.items()]
    about = "Time of a reduction against the number of ranks"
    return both_sizes(series, ("ranks", "ms"), about, log=(True, True))
