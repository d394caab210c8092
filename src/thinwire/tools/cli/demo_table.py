"""What the demo says at the end: one table, and a few sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from thinwire.tools.cli import formatting
from thinwire.tools.cli.demo_progress import tokens_per_second
from thinwire.tools.demo import methods
from thinwire.tools.demo.loop import LEAST_STEPS, Run
from thinwire.tools.demo.race import Settings

_WIDTH = 80
_LATE = 1.1  # of a method's time: its last step may well end after it


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo found. After every run all replicas were bit-identical."""

    settings: Settings
    runs: tuple[Run, ...]
    shaped: bool
    rate: str

    @property
    def plain(self) -> Run | None:
        """The run of plain DDP, if there was one."""
        return next((r for r in self.runs if r.method == methods.PLAIN), None)

    @property
    def ours(self) -> Run | None:
        """The method of thinwire's that came furthest."""
        found = [r for r in self.runs if not methods.is_of_torch(r.method)]
        return min(found, key=lambda run: run.loss, default=None)

    @property
    def size(self) -> str:
        """The number of parameters, as said."""
        return formatting.count(self.runs[0].parameters)

    @property
    def captions(self) -> tuple[str, str]:
        """Of the picture."""
        workers = self.settings.workers
        about = (
            f"{workers} workers on links of {self.rate}, {self.size} parameters, "
            "AdamW; text held out of training"
        )
        return "Loss after the same time: lower is better", about

    def tokens_per_second(self, run: Run) -> float:
        """What a method trained on in a second."""
        chosen = self.settings
        return tokens_per_second(run.steps, run.seconds, chosen.workers, chosen.recipe)

    def seconds_to_plain(self, run: Run) -> float | None:
        """When a method reached plain DDP's last loss, if it did."""
        return None if self.plain is None else run.seconds_to(self.plain.loss)

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        chosen = self.settings
        return {
            "workers": chosen.workers,
            "network": self.rate if self.shaped else "loopback",
            "equal": "time" if self.shaped else "steps",
            "seconds": chosen.seconds,
            "density": chosen.recipe.density,
            "seed": chosen.recipe.seed,
            "parameters": self.runs[0].parameters,
            "replicas_identical": True,  # or there would be no result
            "methods": [self._run_as_dict(run) for run in self.runs],
        }

    def _run_as_dict(self, run: Run) -> dict[str, Any]:
        return {
            "method": run.method,
            "steps": run.steps,
            "seconds": run.seconds,
            "tokens_per_second": self.tokens_per_second(run),
            "held_out_loss": run.loss,
            "bytes_sent": run.sent,
            "seconds_to_plain_loss": self.seconds_to_plain(run),
            "looks": [
                {"step": each.step, "seconds": each.seconds, "loss": each.loss}
                for each in run.looks
            ],
        }


def show(result: Result, console: Console) -> None:
    """The table and the sentences."""
    console.print(_table(result))
    console.print()
    sentences = _on_a_slow_network if result.shaped else _over_loopback
    for sentence in sentences(result):
        console.print(sentence, highlight=False, width=min(_WIDTH, console.width))


def _table(result: Result) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left"
    )
    table.add_column("method", style="bold", no_wrap=True)
    headings = ["steps", "tokens/s", "loss\nreached", "MB sent\nby a worker"]
    plain = result.plain
    if result.shaped and plain is not None:
        headings.append(f"plain DDP's {plain.loss:.2f}\nreached after")
    for heading in headings:
        # A narrow terminal breaks headings, not figures.
        widest = max(map(len, heading.split()))
        table.add_column(heading, justify="right", min_width=widest)
    for run in result.runs:
        cells = [
            f"{run.steps}",
            f"{result.tokens_per_second(run):,.0f}",
            f"{run.loss:.2f}",
            f"{run.sent / 1e6:.1f}",
        ]
        table.add_row(methods.label(run.method), *cells, _sooner(result, run))
    return table


def _sooner(result: Result, run: Run) -> str:
    if result.plain is None or not result.shaped:
        return ""
    seconds = result.seconds_to_plain(run)
    return "not reached" if seconds is None else f"{seconds:.1f} s"


def _on_a_slow_network(result: Result) -> Iterator[str]:
    chosen, plain, ours = result.settings, result.plain, result.ours
    late = any(run.seconds > _LATE * chosen.seconds for run in result.runs)
    least = f", or as long as {LEAST_STEPS} steps take here," if late else ""
    yield (
        f"Each method had {chosen.seconds:g} s{least} on {chosen.workers} workers, "
        f"joined by links of {result.rate}, to train the same small language model "
        f"({result.size} parameters)."
    )
    if plain is not None and ours is not None and ours.steps:
        yield (
            f"Plain DDP sends {plain.megabytes:.2f} MB a step from each worker; "
            f"{ours.method} sends {ours.megabytes:.2f} MB{_part(result, plain, ours)}, "
            f"and made {ours.steps / plain.steps:.1f} times as many steps."
        )
        yield _verdict(result, plain, ours)
    yield "The loss is taken on text that was not trained on; lower is better."
    yield "After each run all workers held the same model, bit for bit."


def _part(result: Result, plain: Run, ours: Run) -> str:
    """What the bytes of a sparse method are; "auto" may send all of a gradient too."""
    density = result.settings.recipe.density
    is_part = methods.is_sparse(ours.method, density)
    if not is_part or 2 * ours.megabytes > plain.megabytes:
        return ""
    return (
        f", the largest {100 * density:g} % of the gradient (the rest is kept and "
        "added to later ones)"
    )


def _verdict(result: Result, plain: Run, ours: Run) -> str:
    seconds = result.seconds_to_plain(ours)
    if seconds is None:
        return f"[yellow]{ours.method} did not reach plain DDP's loss in this time.[/]"
    colour = "green" if seconds < plain.seconds else "yellow"
    return (
        f"[{colour}]{ours.method} reached plain DDP's last loss after {seconds:.1f} s "
        f"instead of {plain.seconds:.1f} s.[/]"
    )


def _over_loopback(result: Result) -> Iterator[str]:
    yield (
        f"Each method made the same steps on {result.settings.workers} local workers "
        f"with the same small language model ({result.size} parameters), or as many as "
        f"fitted in {result.settings.seconds:g} s."
    )
    yield (
        "Over loopback, sparse methods save bytes, not time: compare the MB sent, and "
        "the loss."
    )
    yield "The loss is taken on text that was not trained on; lower is better."
    yield "After each run all workers held the same model, bit for bit."
