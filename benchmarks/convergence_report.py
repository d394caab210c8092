"""What the runs of convergence.py came to: a page of tables, and curves as SVG."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thinwire.cost import Cost, Link

LINK = Link(latency=50e-6, bandwidth=125e6)
TITLES = {
    "resnet20-cifar10": "ResNet-20 on CIFAR-10, 8 workers",
    "lstm-wikitext2": "Two-layer LSTM on WikiText-2, 8 workers",
    "ncf-ratings": "Recommendation with sparse embeddings, 4 workers",
}
COLOURS = [
    "#000000",
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
    "#393b79",
    "#637939",
    "#8c6d31",
    "#843c39",
    "#7b4173",
    "#3182bd",
    "#e6550d",
]
INTRODUCTION = """# Results

Does training with every method arrive where dense training does? Virtual workers on one
device: the collectives, codecs and residuals of real processes, whose parameters they
arrive at (`tests/train/test_virtual.py`). This page is written by

    python benchmarks/convergence.py --write docs/results.md

from `benchmarks/convergence.jsonl`, to which every finished run has added a line:

    python benchmarks/convergence.py --data DATA --at-once 14 --minutes 9

Bytes are what a worker sends in a step, counted by the group and averaged over workers
and over the steps of the last epoch; "smaller" is dense bytes over these. The forecast
is the wire's share of a step at 1 Gbit/s and 50 us a message, rounds and bytes as
counted, nothing else running. The residual is the mean over workers of its norm, after
the first and after the last epoch. All replicas were given the same bits in the last
step of every epoch, or the run would have been refused. Results are those of the last
epoch, never the best.
"""


def write(path: Path, runs: Sequence[Any], results: Sequence[dict[str, Any]]) -> None:
    """The page, and a file of curves beside it for every task."""
    by_key = {result["key"]: result for result in results}
    parts = [INTRODUCTION]
    for task in dict.fromkeys(run.spec.task for run in runs):
        mine = [run for run in runs if run.spec.task == task]
        done = [run for run in mine if run.spec.key in by_key]
        parts.append(f"## {TITLES[task]}\n")
        if done:
            curves = path.with_name(f"results-{task}.svg")
            curves.write_text(_svg(done, by_key))
            parts += [_facts(by_key[done[0].spec.key]), _table(done, by_key)]
            parts.append(f"![Curves]({curves.name})\n")
        missing = sorted({run.label for run in mine} - {run.label for run in done})
        seeds = [
            f"{run.label}, seed {run.spec.seed}" for run in mine if run not in done
        ]
        if missing or seeds:
            parts.append(f"Not run yet: {'; '.join(seeds)}.\n")
    path.write_text("\n".join(parts))


def _facts(result: dict[str, Any]) -> str:
    recipe = result["resolved_recipe"]
    changed = {k: v for k, v in recipe.items() if v not in (None, 0.0, False, (), [])}
    told = ", ".join(f"{name} {value}" for name, value in changed.items())
    return (
        f"{result['parameters']:,} parameters, {result['steps_per_epoch']} steps an "
        f"epoch; {told}. Measured: {result['metric_name']}. "
        f"On {result['device']}, torch {result['torch']}.\n"
    )


def _table(runs: Sequence[Any], by_key: dict[str, dict[str, Any]]) -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(by_key[run.spec.key])
    dense = next((held for label, held in groups.items() if "dense" in label), None)
    lines = [
        "| method | by seed | mean | against dense | bytes a step | smaller | "
        "card | forecast, ms | residual, first to last |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    lines += [_line(label, held, dense) for label, held in groups.items()]
    return "\n".join(lines) + "\n"


def _line(
    label: str, held: list[dict[str, Any]], dense: list[dict[str, Any]] | None
) -> str:
    result = mean(each["result"] for each in held)
    against = (
        "-" if dense is None else f"{result - mean(d['result'] for d in dense):+.2f}"
    )
    first = held[0]
    history = first["history"]
    sent = history["bytes_per_step"][-1]
    busiest = history["busiest_bytes_per_step"][-1]
    rounds = history["rounds_per_step"][-1]
    seconds = LINK.seconds(Cost(round(rounds), round(busiest)))
    residual = history["residual_norm"]
    return (
        f"| {label} | {', '.join(_number(each['result']) for each in held)} "
        f"| {_number(result)} | {against} | {sent:,.0f} "
        f"| {first['dense_bytes_per_step'] / sent if sent else float('inf'):,.0f} x "
        f"| {_card(first['card_bytes_per_step'], busiest)} | {1e3 * seconds:.2f} "
        f"| {residual[0]:.3g} to {residual[-1]:.3g} |"
    )


def _card(card: float | None, busiest: float) -> str:
    if card is None:
        return "counted only"
    return "as counted" if abs(card - busiest) < 1 else f"{card:,.0f}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _svg(runs: Sequence[Any], by_key: dict[str, dict[str, Any]]) -> str:
    """The metric over the epochs: a line for every run of the first seed."""
    shown = [run for run in runs if run.spec.seed == min(r.spec.seed for r in runs)]
    curves = [(run.label, by_key[run.spec.key]["history"]["metric"]) for run in shown]
    first = by_key[shown[0].spec.key]
    # The first fifth of the epochs would squeeze what is to be compared.
    tail = [v for _, values in curves for v in values[len(values) // 5 :]]
    low, high = min(tail), max(tail)
    room, width, height = (high - low) or 1.0, 560, 360
    longest = max(len(values) for _, values in curves)

    def place(epoch: int, value: float) -> str:
        across = 60 + width * epoch / max(longest - 1, 1)
        inside = min(max(value, low), high)
        return f"{across:.1f},{20 + height * (high - inside) / room:.1f}"

    lines = []
    for number, (label, values) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(i, v) for i, v in enumerate(values))
        lines.append(
            f'<polyline fill="none" stroke="{colour}" points="{points}"/>'
            f'<text x="{width + 75}" y="{30 + 15 * number}" fill="{colour}">{label} '
            f"({_number(values[-1])})</text>"
        )
    for value in (low, (low + high) / 2, high):
        down = 24 + height * (high - value) / room
        lines.append(f'<text x="8" y="{down:.0f}">{_number(value)}</text>')
    lines.append(
        f'<text x="60" y="{height + 50}">epochs 1 to {longest}; {first["metric_name"]}'
        "</text>"
    )
    box = f'x="60" y="20" width="{width}" height="{height}"'
    frame = f'<rect {box} fill="none" stroke="#999"/>'
    tall = max(height + 70, 50 + 15 * len(curves))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="1100" height="{tall}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{frame}'
        f"{''.join(lines)}</svg>\n"
    )
