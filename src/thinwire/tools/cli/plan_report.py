"""The report of forecasts: a recommendation, and a table with bars."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from thinwire.tools.cli.formatting import count, milliseconds, nbytes
from thinwire.tools.plan.accuracy import behind, held
from thinwire.tools.plan.forecast import Forecast, Scenario
from thinwire.tools.plan.recommend import Advice, called, percent
from thinwire.tools.report.files import KIND, VERSION

_BAR = 12
# Told apart without colours too.
_PARTS = {
    "backward": ("░", "dim"),
    "processor": ("▓", "yellow"),
    "wire": ("█", "blue"),
    "waiting": ("▒", "magenta"),
}

_NOTES = """\
x dense: how many times as fast as plain DDP. behind dense: where training ended, in \
points of accuracy (ResNet-20 on CIFAR-10) and percent of perplexity (LSTM on \
WikiText-2), 8 workers, docs/experiments/results.md; -: not measured. Densities below \
1 % are in a part of their own: those that were measured did not hold accuracy.
step: from the start of the backward pass until the last gradient is averaged; \
forward and optimizer are not in it. DDP's buckets are reduced one after the other \
while backward goes on. sent: by the busiest rank. How it is made, and how far off it \
was when it was measured: docs/reference/plan.md."""


@dataclass(frozen=True, slots=True)
class Report:
    """Forecasts of one scenario, the fastest step first.

    `assumed` says what was not given and taken to be nothing.
    """

    scenario: Scenario
    forecasts: Sequence[Forecast]
    assumed: str = ""

    @property
    def rows(self) -> list[Forecast]:
        """First those at densities that held accuracy, then the others."""
        return sorted(self.forecasts, key=lambda row: (not held(row.choice), row.step))

    @property
    def advice(self) -> Advice:
        """What to take."""
        return Advice.of(self.forecasts)

    @property
    def verdict(self) -> str:
        """The recommendation, in a sentence or two, and what it assumes."""
        said = self.advice.sentence
        if not self.assumed:
            return said
        first = self.assumed[0].upper() + self.assumed[1:]
        return f"{first}: {said[0].lower()}{said[1:]}"

    def label(self, row: Forecast) -> str:
        """The name of a row, which no other has."""
        codecs = {each.choice.codec for each in self.forecasts} - {None}
        several = len(codecs) > 1 and row.choice.codec is not None
        return called(row) + f", {row.choice.codec}" * several

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        scenario, advice = self.scenario, self.advice
        return {
            KIND: "plan",
            "version": VERSION,
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
            "setting": setting(scenario),
            "assumed": self.assumed,
            "verdict": self.verdict,
            "accuracy": advice.accuracy,
            "dense_is_best": advice.keeps_dense,
            "recommended": self.label(
                advice.dense if advice.keeps_dense else advice.taken
            ),
            "forecasts": [
                {"label": self.label(row), **_row_as_dict(row)} for row in self.rows
            ],
        }


def shown(report: Report) -> Group:
    """The verdict, the table with its bars, and what they mean."""
    advice = report.advice
    style = "bold yellow" if advice.keeps_dense else "bold green"
    legend = Text()
    for part, (glyph, colour) in _PARTS.items():
        legend.append(2 * glyph, colour).append(f" {part}  ")
    said = [Text(report.verdict, style=style)]
    said += [Text(advice.accuracy)] if advice.accuracy else []
    return Group(
        *said,
        Text(setting(report.scenario), style="dim"),
        Text(),
        _table(report),
        legend,
        Text(_NOTES, style="dim"),
    )


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("method", style="bold", overflow="fold")
    for heading in ("density", "step", "x dense", "sent", "behind dense"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    rows, dense = report.rows, report.advice.dense
    longest = max(row.step for row in rows)
    several = len({row.choice.codec for row in rows} - {None}) > 1
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        codec = f"\n  {row.choice.codec}" if several and row.choice.codec else ""
        density = row.choice.density
        last = after is not None and held(row.choice) and not held(after.choice)
        table.add_row(
            row.choice.label + codec,
            "-" if density is None else percent(density),
            milliseconds(row.step),
            f"{dense.step / row.step:.3g}",
            nbytes(row.nbytes),
            _behind(row),
            _bar(row, longest),
            style="reverse" if row is dense else "",
            end_section=last,
        )
    return table


def _behind(row: Forecast) -> str:
    found = behind(row.choice)
    if found is None:
        return "-"
    return f"{found.images:.2g} pt, {found.language:.2g} %"


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


def setting(scenario: Scenario) -> str:
    """What is forecast, in a line."""
    link = scenario.link
    shared = ""
    if scenario.ranks_per_machine > 1:
        shared = f", {scenario.ranks_per_machine} on each {scenario.cores} cores"
    if scenario.workers_per_host > 1:
        shared += f", {scenario.workers_per_host} on each host's link"
    return (
        f"{count(scenario.parameters)} parameters in {scenario.buckets} bucket"
        f"{'s' * (scenario.buckets > 1)}, {scenario.workers} worker"
        f"{'s' * (scenario.workers > 1)}{shared}, links of "
        f"{nbytes(link.bandwidth)}/s and {milliseconds(link.latency)}, "
        f"backward {milliseconds(scenario.backward)}"
    )


def _row_as_dict(row: Forecast) -> dict[str, Any]:
    reduction, found = row.reduction, behind(row.choice)
    return {
        "method": row.choice.method,
        "options": dict(row.choice.options),
        "density": row.choice.density,
        "codec": row.choice.codec,
        "held_accuracy": held(row.choice),
        "behind_dense": None if found is None else asdict(found),
        "parts_s": _parts(row),
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
