"""`thinwire demo`: the progress of the runs, their table, and what it does not say."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from thinwire import catalog
from thinwire.collectives.collective import check_density
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.tools.cli import formatting
from thinwire.tools.cli.methods import LINKS
from thinwire.tools.demo import runs as demo
from thinwire.tools.demo.loop import ProgressEvent, Recipe

DEFAULT_METHODS = "dense,topk,gtopk,spardl"
_LINKS = {name: LINKS[name] for name in ("100 Mbit/s", "1 Gbit/s")}

# Short, so that the table fits a terminal of 80 columns.
_HEADINGS = (
    "steps",
    "train\nloss",
    "held-\nout",
    "sent /\nstep",
    "of\ndense",
    "time /\nstep",
    *(f"wire at\n{name}" for name in _LINKS),
)


def settings(
    methods: str, workers: int, seconds: float, density: float
) -> demo.Settings:
    """What to run, from what was typed."""
    check_density(density)
    listed = [name.strip() for name in methods.split(",") if name.strip()]
    names = tuple(catalog.METHODS) if methods == "all" else tuple(dict.fromkeys(listed))
    return demo.Settings(names, workers, seconds, Recipe(density=density))


def run(chosen: demo.Settings, console: Console, file: Path | None) -> None:
    """Run the demo, show its table, and write the file if one is wanted."""
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"cannot write {file}: there is no folder {file.parent}")
    _introduce(chosen, console)
    with _progress(chosen, console) as on_progress:
        result = demo.run(chosen, on_progress)
    console.print(_table(result))
    console.print()
    _explain(result, console)
    if file is not None:
        file.write_text(json.dumps(as_dict(result), indent=2) + "\n")
        console.print(f"Figures written to {file}", highlight=False)


def as_dict(result: demo.Result) -> dict[str, Any]:
    """The figures as plain values, for JSON."""
    chosen = result.settings
    return {
        "workers": chosen.workers,
        "density": chosen.recipe.density,
        "seed": chosen.recipe.seed,
        "parameters": result.parameters,
        "common_steps": result.common_steps,
        "replicas_identical": True,  # or there would be no result
        "methods": [_row_as_dict(row, result) for row in result.rows],
    }


def _row_as_dict(row: demo.Row, result: demo.Result) -> dict[str, Any]:
    dense = result.dense_bytes
    return {
        "method": row.method,
        "steps": row.steps,
        "ran_out_of_time": not row.in_time,
        "train_loss": {"start": row.losses[0], "end": row.loss_at(row.steps)},
        "train_loss_at_common_steps": row.loss_at(result.common_steps),
        "held_out_loss": {"start": row.held_out_start, "end": row.held_out_end},
        "bytes_sent_per_step": row.bytes_sent,
        "of_dense": row.bytes_sent / dense if dense else None,
        "step_ms": 1e3 * row.seconds,
        "computed_wire_ms": {
            name: 1e3 * link.transfer(round(row.bytes_sent))
            for name, link in _LINKS.items()
        },
        "losses": list(row.losses),
    }


def _introduce(chosen: demo.Settings, console: Console) -> None:
    workers = f"{chosen.workers} local worker{'s' if chosen.workers > 1 else ''}"
    console.print(
        "Training a small transformer to write Python, on the standard library's own "
        f"source: {workers}, once per method, about {chosen.seconds:.0f} s in all.",
        highlight=False,
    )


@contextmanager
def _progress(chosen: demo.Settings, console: Console) -> Iterator[Any]:
    """Shows the progress of rank 0: a bar per method, or lines without a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        starting = progress.add_task(
            f"starting {chosen.workers} processes", total=None, news=""
        )

        def on_progress(event: ProgressEvent) -> None:
            progress.update(starting, visible=False)
            news = f"step {event.step}, loss {event.loss:.2f}"
            if event.method not in bars:
                place = f"{len(bars) + 1} of {len(chosen.methods)}: {event.method}"
                bars[event.method] = progress.add_task(place, total=1.0, news=news)
                if not console.is_terminal:
                    console.print(f"training {place}", highlight=False)
            bar = bars[event.method]
            progress.update(bar, completed=event.fraction, news=news)

        yield on_progress


def _table(result: demo.Result) -> Table:
    chosen = result.settings
    size = formatting.count(result.parameters)
    table = Table(
        title=f"{size} parameters, {chosen.workers} workers, sparse methods keep "
        f"{100 * chosen.recipe.density:g} %",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", style="bold", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    start = result.rows[0]
    table.add_row(
        "(start)", "0", f"{start.losses[0]:.2f}", f"{start.held_out_start:.2f}"
    )
    for row in result.rows:
        table.add_row(*_cells(row, result))
    return table


def _cells(row: demo.Row, result: demo.Result) -> list[str]:
    cost = Cost(nbytes=round(row.bytes_sent))
    return [
        row.method,
        str(row.steps) if row.in_time else f"{row.steps}*",
        f"{row.loss_at(result.common_steps):.2f}",
        f"{row.held_out_end:.2f}",
        formatting.nbytes(row.bytes_sent),
        formatting.share(row.bytes_sent, result.dense_bytes),
        formatting.milliseconds(row.seconds),
        *(formatting.milliseconds(link.seconds(cost)) for link in _LINKS.values()),
    ]


def _explain(result: demo.Result, console: Console) -> None:
    for paragraph in _paragraphs(result):
        console.print(paragraph, highlight=False)


def _paragraphs(result: demo.Result) -> Iterator[str]:
    workers, common = result.settings.workers, result.common_steps
    yield (
        f"[green]Replicas[/]  bit-identical on all {workers} workers after every run "
        "(checksums of all parameters)."
    )
    yield (
        "[bold]Loss[/]  nats per character: the mean of the last "
        f"{demo.LOSS_WINDOW} training batches up to step {common}, and of text held "
        "out of training. Weights and batches are the same for every method. A sparse "
        "gradient arrives later, not less; thinwire.AdamW knows for how many steps "
        "each element has waited."
    )
    late = [row.method for row in result.rows if not row.in_time]
    if late:
        yield (
            f"[yellow]*[/]  {', '.join(late)} ran out of time before step "
            f"{result.rows[0].steps}: compare training losses, not held-out ones, or "
            "give more --seconds."
        )
    yield (
        "[bold]Sent[/]  bytes sent by the busiest worker, as thinwire counts them; a "
        "library all-reduce counts as a ring."
    )
    yield (
        "[bold]Time[/]  measured here, where the workers share processors and talk "
        "over loopback. That is no slow network: here sparse methods save bytes, not "
        "time. The wire columns are computed, not measured: bytes / bandwidth, the "
        "time for which a step would keep such a network busy at least."
    )
    yield (
        "[bold]On your own network[/]  start your script with torchrun on two or more "
        'machines, put [cyan]thinwire.attach(model, "spardl")[/] after DDP(model), and '
        "compare its seconds per step with those under [cyan]THINWIRE=dense[/]. For "
        "the bytes of your model: [cyan]thinwire methods --size N --ranks P[/]."
    )
