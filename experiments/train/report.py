"""What the training command shows: a bar while it trains, a table in the end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from experiments.tasks.base import Task
from experiments.train.run import Log
from experiments.train.spec import Spec
from thinwire.tools.cli import formatting
from thinwire.tools.cli.methods import LINKS

_LINK = "1 Gbit/s"
_SILENT = 10.0  # seconds without a line where there is no bar
_REPLICAS = {
    "virtual": "given bit-identical means in the last step of every epoch",
    "processes": "bit-identical after every epoch",
}


class Logs:
    """A `Log` that forwards to several others."""

    def __init__(self, *logs: Log) -> None:
        self._logs = logs

    def begin(self, spec: Spec, steps: int, done: int) -> None:
        for log in self._logs:
            log.begin(spec, steps, done)

    def step(self, number: int) -> None:
        for log in self._logs:
            log.step(number)

    def epoch(self, number: int, figures: Mapping[str, float]) -> None:
        for log in self._logs:
            log.epoch(number, figures)


class Bar:
    """A `Log` that moves a bar; where bars cannot be, lines: at least every epoch."""

    def __init__(self, progress: Progress, task: Task) -> None:
        self._progress, self._metric = progress, task.metric
        self._started = self._told = monotonic()
        self._steps = 0
        self._bar = progress.add_task("loading", total=None, news="")
        self._line("loading the task and its data")

    def begin(self, spec: Spec, steps: int, done: int) -> None:
        self._steps = steps
        if done:
            self._say(f"going on after {done} steps")
        method = spec.reduction.method
        self._line(f"training with {method}: {steps} steps, the first ones are slow")
        self._progress.reset(self._bar, total=steps, completed=done, description=method)

    def step(self, number: int) -> None:
        self._progress.update(self._bar, completed=number)
        if monotonic() - self._told > _SILENT:
            self._line(f"step {number} of {self._steps}")

    def epoch(self, number: int, figures: Mapping[str, float]) -> None:
        news = (
            f"epoch {number}: loss {figures['loss']:.3f}, "
            f"{self._metric} {figures['metric']:.2f}"
        )
        self._progress.update(self._bar, news=news)
        self._line(f"{news}, {figures['seconds']:.1f} s")

    def _line(self, text: str) -> None:
        """Say it where no bar can."""
        self._told = monotonic()
        if not self._progress.console.is_terminal:
            self._say(f"{self._told - self._started:5.0f} s  {text}")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


@contextmanager
def progress(task: Task, *, quiet: bool) -> Iterator[Bar]:
    """A bar on standard error for as long as the run takes."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    errors = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=errors, transient=True) as shown:
        yield Bar(shown, task)


def show(result: Mapping[str, Any], console: Console) -> None:
    """The result of a run as a table."""
    reduction = result["reduction"]
    table = Table(
        title=f"{result['task']}, {reduction['method']}, {result['workers']} "
        f"{'virtual workers' if result['workers_are'] == 'virtual' else 'processes'}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows(result):
        table.add_row(name, value)
    console.print(table)


def rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the table says, line by line."""
    history = result["history"]
    sent = history["busiest_bytes_per_step"]
    dense, steps = result["dense_bytes_per_step"], result["steps_per_epoch"]
    mean = sum(sent) / len(sent)
    yield result["metric_name"], f"{result['result']:.2f} (best {result['best']:.2f})"
    for name, value in result.get("final", {}).items():
        yield name, f"{value:.2f}"
    yield "training loss", f"{history['loss'][-1]:.4f}"
    yield "epochs", f"{result['epochs']} of {steps} steps"
    yield "parameters", f"{result['parameters']:,}"
    yield (
        "sent per step",
        f"{formatting.nbytes(mean)} by the busiest worker, "
        f"{formatting.share(mean, dense)} of dense "
        f"(in the last epoch {formatting.nbytes(sent[-1])})",
    )
    if mean:
        yield "compression", f"{dense / mean:.1f} x"
    wire = LINKS[_LINK].transfer(round(sent[-1]))
    yield f"wire at {_LINK}", f"{formatting.milliseconds(wire)} a step, computed"
    norms = history["residual_norm"]
    yield "residual norm", f"{norms[-1]:.3g} (largest {max(norms):.3g})"
    yield "replicas", _REPLICAS[result["workers_are"]]
    yield (
        "time",
        f"{result['seconds']:.0f} s, "
        f"{formatting.milliseconds(result['seconds'] / (steps * result['epochs']))} "
        f"a step of all workers, on {result['device']}",
    )
