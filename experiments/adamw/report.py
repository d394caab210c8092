"""The page of results under AdamW: a table of runs for every task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.adamw.loop import recorded
from experiments.adamw.matrix import STAGES
from experiments.adamw.real import section
from experiments.adamw.spikes import spikes
from experiments.adamw.words import BEST, DATA, INTRODUCTION, TITLES
from experiments.convergence.matrix import Run
from experiments.convergence.report import wrapped
from experiments.tasks.base import Recipe

POINTS, PERCENT = 0.5, 1.0  # what is called falling behind: accuracy, anything else


@dataclass(frozen=True)
class Row:
    """The results of one method at one learning rate, by seed."""

    label: str
    rate: float
    by_seed: Mapping[int, dict[str, Any]]

    @property
    def first(self) -> dict[str, Any]:
        return self.by_seed[min(self.by_seed)]

    def over_run(self, figure: str) -> float:
        """The mean of a figure over all steps of the first seed's run."""
        return mean(self.first["history"][figure])

    def against(self, other: "Row | None") -> float | None:
        """The mean difference over common seeds: accuracy in points, else percent."""
        seeds = self.by_seed.keys() & other.by_seed.keys() if other else ()
        if other is None or not seeds:
            return None
        pairs = [(value(self.by_seed[s]), value(other.by_seed[s])) for s in seeds]
        if self.first["higher_is_better"]:
            return mean(mine - theirs for mine, theirs in pairs)
        return mean(100 * (mine / theirs - 1) for mine, theirs in pairs)


def value(result: Mapping[str, Any]) -> float:
    """The figure of a run that counts."""
    return float(result["best" if result["task"] in BEST else "result"])


def write(path: Path, runs: Sequence[Run], results: Sequence[dict[str, Any]]) -> None:
    """The page: the runs that have a result, and those of real processes."""
    by_key = {result["key"]: result for result in results}
    parts = [INTRODUCTION]
    for task in dict.fromkeys(run.spec.task for run in runs):
        mine = [run for run in runs if run.spec.task == task]
        parts.append(f"## {TITLES[task]}\n")
        parts += _section([run for run in mine if run.spec.key in by_key], by_key)
        parts.append(_missing([run for run in mine if run.spec.key not in by_key]))
    parts += section(recorded())
    path.write_text(wrapped("\n".join(part for part in parts if part)))


def _section(runs: Sequence[Run], by_key: Mapping[str, dict]) -> Iterator[str]:
    rows = _rows(runs, by_key)
    if not rows:
        return
    task = rows[0].first["task"]
    usual = _usual_rate(rows)
    same = [row for row in rows if row.rate == usual]
    dense = next((row for row in same if row.label == "dense"), None)
    yield _facts(rows[0].first)
    yield DATA[task]
    yield f"At the learning rate of dense, {usual:g}:\n"
    yield _table(same, dense)
    others = [row for row in rows if row.rate != usual]
    if others:
        yield "At other learning rates, against dense at the one above:\n"
        yield _table(others, dense)


def _rows(runs: Sequence[Run], by_key: Mapping[str, dict]) -> list[Row]:
    groups: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
    for run in runs:
        result = by_key[run.spec.key]
        rate = result["resolved_recipe"]["learning_rate"]
        groups.setdefault((run.label, rate), {})[run.spec.seed] = result
    return [Row(label, rate, by_seed) for (label, rate), by_seed in groups.items()]


def _usual_rate(rows: Sequence[Row]) -> float:
    """The learning rate of most runs: the recipe's."""
    count: dict[float, int] = {}
    for row in rows:
        count[row.rate] = count.get(row.rate, 0) + len(row.by_seed)
    return max(count, key=count.__getitem__)


def _facts(result: Mapping[str, Any]) -> str:
    recipe = Recipe(**result["resolved_recipe"])
    steps = recipe.epochs * result["steps_per_epoch"]
    facts = [
        f"{result['parameters']:,} parameters",
        f"{steps:,} steps",
        f"batches of {recipe.batch} on each of {result['workers']} workers",
        f"betas {recipe.betas[0]:g} and {recipe.betas[1]:g}",
        f"weight decay {recipe.weight_decay:g} on matrices",
        recipe.schedule + (f" down to {recipe.final:g}" if recipe.final else ""),
        f"norm clipped at {recipe.clip:g}" if recipe.clip else "no clipping",
    ]
    return f"{'; '.join(facts)}. On {result['device']}, torch {result['torch']}.\n"


def _table(rows: Sequence[Row], dense: Row | None) -> str:
    seeds = sorted({seed for row in rows for seed in row.by_seed})
    metric = rows[0].first["metric_name"]
    named = [f"{metric}, seed {seeds[0]}", *(f"seed {seed}" for seed in seeds[1:])]
    heads = ["method", "learning rate", *named, "against dense"]
    heads += ["bytes a step", "rounds a step", "spikes"]
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            f"| --- |{' ---: |' * (len(seeds) + 4)} --- |",
            *(f"| {' | '.join(_cells(row, dense, seeds))} |" for row in rows),
            "",
        ]
    )


def _cells(row: Row, dense: Row | None, seeds: Sequence[int]) -> Iterator[str]:
    yield row.label
    yield f"{row.rate:g}"
    digits = 2 if row.first["higher_is_better"] else 3
    for seed in seeds:
        held = row.by_seed.get(seed)
        yield "-" if held is None else f"{value(held):.{digits}f}"
    yield "-" if row is dense else _against(row, dense)
    yield f"{row.over_run('bytes_per_step'):,.0f}"
    yield f"{row.over_run('rounds_per_step'):.3g}"
    yield "; ".join(dict.fromkeys(_spikes(row)))


def _against(row: Row, dense: Row | None) -> str:
    against = row.against(dense)
    if against is None:
        return "-"
    better = row.first["higher_is_better"]
    text = f"{against:+.2f}" + ("" if better else " %")
    behind = against < -POINTS if better else against > PERCENT
    return f"**{text}**" if behind else text


def _spikes(row: Row) -> Iterator[str]:
    """What to say of each seed's spikes."""
    for seed, result in sorted(row.by_seed.items()):
        losses = result["history"].get("step_loss")
        if not losses:
            yield "not recorded"
            continue
        found = spikes(losses)
        lasting = [spike for spike in found if not spike.recovered]
        if lasting:
            first = lasting[0]
            yield (
                f"**not recovered** (seed {seed}, step {first.step}, "
                f"{first.length} steps, {first.height:.2f} x)"
            )
        elif found:
            yield f"{len(found)}, recovered (seed {seed})"
        else:
            yield "none"


def _missing(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    lines = ["Not run yet:\n"]
    for stage, held in groupby(runs, key=lambda run: run.stage):
        named = [_name(run) for run in held]
        lines.append(f"- {STAGES[stage]}: {'; '.join(named)}")
    return "\n".join(lines) + "\n"


def _name(run: Run) -> str:
    rate = run.spec.recipe.get("learning_rate")
    at = f" at {rate:g}" if rate else ""
    return f"{run.label}{at} (seed {run.spec.seed})"
