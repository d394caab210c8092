"""The live table of the demo; without a terminal, lines on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thinwire.tools.demo import methods
from thinwire.tools.demo.loop import ProgressEvent, Recipe
from thinwire.tools.demo.race import Settings

OnProgress = Callable[[ProgressEvent], None]

_BAR = 14
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 16  # columns
_WITH_CURVES = 76  # columns of a terminal
_PARTS = 5  # of a run: a line for each, where there is no terminal


def tokens_per_second(step: int, seconds: float, workers: int, recipe: Recipe) -> float:
    """Characters that all workers together have trained on, in a second."""
    tokens = step * workers * recipe.batch * recipe.shape.context
    return tokens / seconds if seconds else 0.0


@contextmanager
def progress(chosen: Settings, console: Console) -> Iterator[OnProgress]:
    """What shows an event."""
    if not console.is_terminal:
        yield _lines(chosen, Console(stderr=True))
        return
    latest: dict[str, list[ProgressEvent]] = {}
    with Live(
        _table(chosen, latest, console.width),
        console=console,
        refresh_per_second=4,
        transient=True,
    ) as live:

        def on_progress(event: ProgressEvent) -> None:
            latest.setdefault(event.method, []).append(event)
            live.update(_table(chosen, latest, console.width))

        yield on_progress


def _lines(chosen: Settings, console: Console) -> OnProgress:
    shown: dict[str, int] = {}
    console.print(f"starting {chosen.workers} workers", highlight=False)

    def on_progress(event: ProgressEvent) -> None:
        number = chosen.methods.index(event.method) + 1
        part = int(event.fraction * _PARTS)
        if part > shown.get(event.method, -1):
            shown[event.method] = part
            console.print(
                f"{number} of {len(chosen.methods)}, {methods.label(event.method)}: "
                f"{event.seconds:.0f} s, step {event.step}, "
                f"loss {event.held_out:.2f}",
                highlight=False,
            )

    return on_progress


def _table(
    chosen: Settings, latest: dict[str, list[ProgressEvent]], width: int
) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("method", style="bold", no_wrap=True)
    table.add_column("time", no_wrap=True)
    for heading in ("", "steps", "tokens/s", "loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    # The figures come first where there is no room for all.
    curves = width >= _WITH_CURVES
    if curves:
        table.add_column("over time", no_wrap=True)
    for method in chosen.methods:
        events = latest.get(method)
        if not events:
            table.add_row(Text(methods.label(method), style="dim"))
            continue
        now = events[-1]
        speed = tokens_per_second(now.step, now.seconds, chosen.workers, chosen.recipe)
        table.add_row(
            methods.label(method),
            ProgressBar(1.0, now.fraction, width=_BAR),
            f"{now.seconds:.0f} s",
            f"{now.step}",
            f"{speed:,.0f}",
            f"{now.held_out:.2f}",
            *([_curve(events, latest)] if curves else []),
        )
    said = "Training the same model with each method, in turns. Lower loss is better."
    waiting = "" if latest else " Starting ..."
    return Group(Text(said + waiting), Text(), table)


def _curve(events: list[ProgressEvent], latest: dict[str, list[ProgressEvent]]) -> str:
    """The held-out loss over the time of the run, on one scale for all methods."""
    every = [event.held_out for each in latest.values() for event in each]
    low, high = min(every), max(every)
    drawn = ""
    for column in range(_CURVE):
        reached = [e.held_out for e in events if e.fraction <= (column + 1) / _CURVE]
        if column / _CURVE > events[-1].fraction or not reached:
            break
        share = (reached[-1] - low) / (high - low) if high > low else 0.0
        drawn += _BLOCKS[round(share * (len(_BLOCKS) - 1))]
    return drawn
