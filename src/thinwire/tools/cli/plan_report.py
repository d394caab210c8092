"""The report of forecasts: a recommendation, and a table with bars."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from thinwire.tools.cli.formatting import count, milliseconds, nbytes, share
from thinwire.tools.plan.forecast import Forecast, Scenario

# A forecast cannot tell methods apart that differ by less: docs/reference/plan.md.
_DOUBT = 0.15
_BAR = 22
# Told apart without colours too.
_PARTS = {
    "backward": ("░", "dim"),
    "processor": ("▓", "yellow"),
    "wire": ("█", "blue"),
    "waiting": ("▒", "magenta"),
}

_FONTS = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)

_NOTES = """\
step: from the start of the backward pass until the last gradient is averaged; \
forward and optimizer are not in it. DDP's buckets are reduced one after the other \
while backward goes on. sent: by the busiest rank. How it is made, and how far off it \
was when it was measured: docs/reference/plan.md."""


@dataclass(frozen=True, slots=True)
class Report:
    """Forecasts of one scenario, the fastest step first."""

    scenario: Scenario
    rows: list[Forecast]

    @property
    def dense(self) -> Forecast:
        """What everything is compared with."""
        return next(row for row in self.rows if row.choice.method == "dense")

    @property
    def verdict(self) -> str:
        """The recommendation, in a sentence or two."""
        best, dense = self.rows[0], self.dense
        if best is dense:
            return "Dense is best: leave DDP as it is."
        name, times = _name(best), dense.step / best.step
        if times < 1 + _DOUBT:
            return (
                f"Dense is as good: {name} would be {100 * (times - 1):.0f} % faster, "
                "which is less than this forecast can tell. Leave DDP as it is, or "
                "measure both."
            )
        return f"{name} is best: a step {times:.3g} times as fast as dense."

    @property
    def dense_is_best(self) -> bool:
        """Whether no method is faster by more than the error of the forecast."""
        return self.dense.step < (1 + _DOUBT) * self.rows[0].step

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        scenario = self.scenario
        return {
            "parameters": scenario.parameters,
            "workers": scenario.workers,
            "link": {
                "latency_s": scenario.link.latency,
                "bytes_per_s": scenario.link.bandwidth,
                "measured": scenario.rounds is not None,
            },
            "backward_s": scenario.backward,
            "buckets": scenario.buckets,
            "ranks_per_machine": scenario.ranks_per_machine,
            "cores": scenario.cores,
            "workers_per_host": scenario.workers_per_host,
            "verdict": self.verdict,
            "dense_is_best": self.dense_is_best,
            "forecasts": [_row_as_dict(row) for row in self.rows],
        }


def shown(report: Report) -> Group:
    """The verdict, the table with its bars, and what they mean."""
    style = "bold green" if not report.dense_is_best else "bold yellow"
    legend = Text()
    for part, (glyph, colour) in _PARTS.items():
        legend.append(2 * glyph, colour).append(f" {part}  ")
    return Group(
        Text(report.verdict, style=style),
        Text(_setting(report.scenario), style="dim"),
        Text(),
        _table(report),
        legend,
        Text(_NOTES, style="dim"),
    )


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", style="bold", no_wrap=True)
    for heading in ("density", "step", "dense", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    longest = max(row.step for row in report.rows)
    several = len({row.choice.codec for row in report.rows} - {None}) > 1
    for row in report.rows:
        codec = f"\n  {row.choice.codec}" if several and row.choice.codec else ""
        density = row.choice.density
        table.add_row(
            row.choice.label + codec,
            "-" if density is None else f"{100 * density:.3g} %",
            milliseconds(row.step),
            f"x {row.step / report.dense.step:.3g}",
            nbytes(row.nbytes),
            _bar(row, longest),
            style="reverse" if row.choice.method == "dense" else "",
        )
    return table


def _bar(row: Forecast, longest: float) -> Text:
    """A bar of the parts of a step, to the scale of the longest step."""
    bar, drawn, so_far = Text(), 0, 0.0
    for part, seconds in _parts(row).items():
        so_far += seconds
        end = round(_BAR * so_far / longest) if longest else 0
        glyph, colour = _PARTS[part]
        bar.append(glyph * (end - drawn), colour)
        drawn = end
    return bar


def _parts(row: Forecast) -> dict[str, float]:
    """The parts of a step; those that overlap with backward are left out."""
    reduction = row.reduction
    wire = max(reduction.wire, reduction.transport)
    total = reduction.seconds or 1.0
    return {
        "backward": row.scenario.backward,
        "processor": row.exposed * reduction.compute / total,
        "wire": row.exposed * wire / total,
        "waiting": row.exposed * reduction.waits / total,
    }


def _setting(scenario: Scenario) -> str:
    link = scenario.link
    shared = ""
    if scenario.ranks_per_machine > 1:
        shared = f", {scenario.ranks_per_machine} on each {scenario.cores} cores"
    if scenario.workers_per_host > 1:
        shared += f", {scenario.workers_per_host} on each host's link"
    return (
        f"{count(scenario.parameters)} parameters in {scenario.buckets} buckets, "
        f"{scenario.workers} workers{shared}, links of {nbytes(link.bandwidth)}/s and "
        f"{milliseconds(link.latency)}, backward {milliseconds(scenario.backward)}"
    )


def _name(row: Forecast) -> str:
    density = row.choice.density
    return row.choice.label + (f" at {share(density, 1)}" if density else "")


def _row_as_dict(row: Forecast) -> dict[str, Any]:
    reduction = row.reduction
    return {
        "method": row.choice.method,
        "options": dict(row.choice.options),
        "density": row.choice.density,
        "codec": row.choice.codec,
        "step_s": row.step,
        "exposed_s": row.exposed,
        "bytes_sent": row.nbytes,
        "bucket": {
            "seconds": reduction.seconds,
            "compute_s": reduction.compute,
            "wire_s": reduction.wire,
            "transport_s": reduction.transport,
            "waits_s": reduction.waits,
            "rounds": row.cost.rounds,
            "bytes_sent": row.cost.nbytes,
        },
    }


def draw(report: Report, file: Path) -> None:
    """The same as a picture, .svg or .html, that needs nothing besides."""
    with Path(os.devnull).open("w") as nowhere:
        page = Console(record=True, file=nowhere, width=80, force_terminal=True)
        page.print(shown(report))
    if file.suffix == ".html":
        page.save_html(str(file))
        return
    drawing = page.export_svg(title="thinwire plan")
    # It asks for fonts from elsewhere.
    file.write_text(_FONTS.sub("", drawing), encoding="utf-8")
