"""The page of results: tables of the runs, and their curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from textwrap import wrap
from typing import Any

from experiments.convergence.curves import Curve, svg
from experiments.convergence.words import DATA, INTRODUCTION, STAGES, TITLES
from experiments.tasks.base import Recipe
from experiments.train.run import card_bytes
from experiments.train.spec import Spec
from thinwire.cost import Cost, Link

LINK = Link(latency=50e-6, bandwidth=125e6)
COLUMNS = 100
POINTS, PERCENT = 0.5, 2.0  # what is called falling behind: accuracy, perplexity


@dataclass(frozen=True)
class Row:
    """The results of one method, by seed."""

    label: str
    by_seed: Mapping[int, dict[str, Any]]

    @property
    def first(self) -> dict[str, Any]:
        return self.by_seed[min(self.by_seed)]

    @property
    def is_dense(self) -> bool:
        return self.label.startswith("dense")

    @property
    def clips_locally(self) -> bool:
        return bool(self.first["reduction"]["clip_locally"])

    @property
    def mean(self) -> float:
        return mean(held["result"] for held in self.by_seed.values())

    @property
    def sent(self) -> float:
        return float(self.first["history"]["bytes_per_step"][-1])

    @property
    def spread(self) -> float:
        results = [held["result"] for held in self.by_seed.values()]
        return float(max(results) - min(results))

    def against(self, other: "Row | None") -> float | None:
        """The mean difference over common seeds, in points; perplexity in percent."""
        seeds = self.by_seed.keys() & other.by_seed.keys() if other else ()
        if other is None or not seeds:
            return None
        pairs = [(self.by_seed[s]["result"], other.by_seed[s]["result"]) for s in seeds]
        if self.first["higher_is_better"]:
            return mean(mine - theirs for mine, theirs in pairs)
        return mean(100 * (mine / theirs - 1) for mine, theirs in pairs)

    def is_behind(self, other: "Row | None") -> bool:
        against = self.against(other)
        if against is None:
            return False
        better = self.first["higher_is_better"]
        return against < -POINTS if better else against > PERCENT


def write(path: Path, runs: Sequence[Any], results: Sequence[dict[str, Any]]) -> None:
    """The page, and a file of curves beside it for every task."""
    by_key = {result["key"]: result for result in results}
    parts = [INTRODUCTION]
    for task in dict.fromkeys(run.spec.task for run in runs):
        mine = [run for run in runs if run.spec.task == task]
        rows = _rows(mine, by_key)
        parts.append(f"## {TITLES[task]}\n")
        if rows:
            curves = path.with_name(f"results-{task}.svg")
            curves.write_text(svg(_curves(rows), rows[0].first["metric_name"]))
            parts += [_facts(rows[0].first, len(rows)), DATA[task], _table(rows)]
            parts += [*_remarks(rows), f"![Curves of the first seed]({curves.name})\n"]
        parts.append(_missing([run for run in mine if run.spec.key not in by_key]))
    path.write_text(wrapped("\n".join(part for part in parts if part)))


def wrapped(page: str) -> str:
    """Prose of at most 100 columns; tables, code and headings as they are."""
    lines: list[str] = []
    for line in page.splitlines():
        prose = len(line) > COLUMNS and not line.startswith(("|", "#", "!", " "))
        indent = "  " if line.startswith("- ") else ""
        lines += (
            wrap(line, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)
            if prose
            else [line]
        )
    return "\n".join(lines) + "\n"


def _rows(runs: Sequence[Any], by_key: Mapping[str, dict[str, Any]]) -> list[Row]:
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        if run.spec.key in by_key:
            groups.setdefault(run.label, {})[run.spec.seed] = by_key[run.spec.key]
    return [Row(label, by_seed) for label, by_seed in groups.items()]


def _dense(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.is_dense), None)


def _compared(row: Row, rows: Sequence[Row]) -> Row | None:
    """The dense row that clips in the same way, else the first dense row."""
    same = [each for each in rows if each.clips_locally == row.clips_locally]
    return (None if row.is_dense else _dense(same)) or _dense(rows)


def _curves(rows: Sequence[Row]) -> list[Curve]:
    return [
        Curve(
            row.label,
            row.first["history"]["metric"],
            row.first["history"]["residual_norm"],
        )
        for row in rows
    ]


def _facts(result: dict[str, Any], methods: int) -> str:
    recipe = Recipe(**result["resolved_recipe"])
    facts = [
        f"{recipe.epochs} epochs of {result['steps_per_epoch']} steps",
        f"batches of {recipe.batch} on each of {result['workers']} workers",
        "Adagrad" if recipe.optimizer == "adagrad" else "SGD",
        f"learning rate {recipe.learning_rate:g}, {recipe.schedule}",
    ]
    if recipe.warmup_epochs:
        facts[-1] += f" after {recipe.warmup_epochs:g} epochs of warm-up"
    if recipe.momentum:
        facts.append(f"momentum {recipe.momentum:g}")
    if recipe.weight_decay:
        facts.append(f"weight decay {recipe.weight_decay:g}")
    if recipe.clip:
        facts.append(f"norm clipped at {recipe.clip:g}")
    if not recipe.densities:
        facts.append("no warm-up of densities")
    return (
        f"{methods} methods, {result['parameters']:,} parameters; {', '.join(facts)}. "
        f"On {result['device']}, torch {result['torch']}.\n"
    )


def _table(rows: Sequence[Row]) -> str:
    seeds = sorted({seed for row in rows for seed in row.by_seed})
    metric = rows[0].first["metric_name"]
    named = [f"{metric}, seed {seeds[0]}", *(f"seed {seed}" for seed in seeds[1:])]
    heads = ["method", *named, "against dense", "sent", "smaller", "card"]
    heads += ["wire, ms", "residual, 1/3, 2/3, end", "over gradient"]
    lines = [
        f"| {' | '.join(heads)} |",
        f"| --- |{' ---: |' * (len(seeds) + 3)} --- | ---: | --- | --- |",
        *(f"| {' | '.join(_cells(row, rows, seeds))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row, rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[str]:
    dense = _dense(rows)
    history = row.first["history"]
    busiest = history["busiest_bytes_per_step"][-1]
    yield row.label
    for seed in seeds:
        yield f"{row.by_seed[seed]['result']:.2f}" if seed in row.by_seed else "-"
    yield "-" if row is dense else _against(row, _compared(row, rows))
    yield f"{row.sent:,.0f}"
    yield f"{dense.sent / row.sent:,.1f} x" if dense and row.sent else "-"
    yield _card(row.first, busiest)
    rounds = history["rounds_per_step"][-1]
    yield f"{1e3 * LINK.seconds(Cost(round(rounds), round(busiest))):.2f}"
    norms = history["residual_norm"]
    yield _at_thirds(norms) if any(norms) else "none"
    yield _at_thirds(_over_gradient(history)) if any(norms) else "none"


def _at_thirds(figures: Sequence[float | None]) -> str:
    """After a third, two thirds and all of the epochs."""
    places = [len(figures) // 3, 2 * len(figures) // 3, len(figures)]
    held = [figures[max(place, 1) - 1] for place in places]
    if not any(held):
        return "-"
    return ", ".join("-" if each is None else f"{each:.3g}" for each in held)


def _over_gradient(history: Mapping[str, Any]) -> list[float | None]:
    """Residuals in units of a worker's gradient; None where that was not recorded."""
    residuals = history["residual_norm"]
    gradients = history.get("gradient_norm") or [None] * len(residuals)
    return [
        residual / gradient if gradient else None
        for residual, gradient in zip(residuals, gradients, strict=True)
    ]


def _against(row: Row, dense: Row | None) -> str:
    against = row.against(dense)
    if against is None:
        return "-"
    text = f"{against:+.2f}" + ("" if row.first["higher_is_better"] else " %")
    return f"**{text}**" if row.is_behind(dense) else text


def _card(result: dict[str, Any], busiest: float) -> str:
    recorded = result["card_bytes_per_step"]
    if recorded is None:
        return "counted only"
    spec = {name: result[name] for name in Spec.__dataclass_fields__}
    recipe = Recipe(**result["resolved_recipe"])
    card = card_bytes(recipe, Spec.of(spec), result["parameters"])
    # The finite check had another card in the first runs, and dense had none of it.
    return "as counted" if busiest in (card, recorded) else f"{recorded:,.0f} at most"


def _remarks(rows: Sequence[Row]) -> Iterator[str]:
    """Sentences that follow from the figures."""
    unit = "points" if rows[0].first["higher_is_better"] else "units of perplexity"
    several = [row for row in rows if len(row.by_seed) > 1]
    ways = sorted({row.clips_locally for row in several})
    spreads = []
    for way in ways:  # of clipping, which decides how much chance there is
        same = [row for row in several if row.clips_locally == way]
        widest = max(same, key=lambda row: row.spread)
        spreads.append(f"{widest.spread:.2f} {unit} apart ({widest.label})")
    if len(ways) > 1:
        spreads[-1] += " where each worker clips"
    if spreads:
        yield (
            "Runs that differ in nothing but the seed lie up to "
            f"{', and up to '.join(spreads)}: smaller differences between methods "
            "may be chance, above all those of one seed.\n"
        )
    behind = [row.label for row in rows if row.is_behind(_compared(row, rows))]
    named = "; ".join(behind) or "none of these"
    yield f"Behind dense by more than the bound: {named}.\n"
    changed = list(_variants(rows))
    if changed:
        yield f"What the variants change, by common seeds: {'; '.join(changed)}.\n"
    grown = {
        row.label: norms[-1] / norms[2 * len(norms) // 3 - 1]
        for row in rows
        for norms in [row.first["history"]["residual_norm"]]
        if len(norms) > 2 and all(norms)
    }
    if grown:
        label = max(grown, key=grown.__getitem__)
        yield (
            "In the last third of the epochs residuals came to between "
            f"{min(grown.values()):.2f} and {grown[label]:.2f} times what they were "
            f"(most: {label}).{_said_of_gradients(rows)}\n"
        )


def _said_of_gradients(rows: Sequence[Row]) -> str:
    """How gradient norms changed during training, if recorded."""
    grown = [
        norms[-1] / norms[2 * len(norms) // 3 - 1]
        for row in rows
        for norms in [row.first["history"].get("gradient_norm") or [None]]
        if len(norms) > 2 and norms[-1] and norms[2 * len(norms) // 3 - 1]
    ]
    if not grown:
        return " What the gradients themselves did was not recorded."
    recorded = f" Gradients of {len(grown)} of the {len(rows)} methods were recorded:"
    return (
        f"{recorded} they came to between {min(grown):.2f} and {max(grown):.2f} times."
    )


def _variants(rows: Sequence[Row]) -> Iterator[str]:
    by_label = {row.label: row for row in rows}
    for row in rows:
        base, _, note = row.label.rpartition(", ")
        against = row.against(by_label.get(base))
        if against is not None:
            percent = "" if row.first["higher_is_better"] else " %"
            yield f"{base} with {note} {against:+.2f}{percent}"


def _missing(runs: Sequence[Any]) -> str:
    if not runs:
        return ""
    lines = ["Not run yet:\n"]
    for stage, held in groupby(runs, key=lambda run: run.stage):
        seeds: dict[str, list[str]] = {}
        for run in held:
            seeds.setdefault(run.label, []).append(str(run.spec.seed))
        named = [
            f"{label} (seed{'s' * (len(s) > 1)} {', '.join(s)})"
            for label, s in seeds.items()
        ]
        lines.append(f"- {STAGES[stage]}: {'; '.join(named)}")
    return "\n".join(lines) + "\n"
