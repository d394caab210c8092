"""`thinwire bench train`: its table and its files."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from thinwire.tools.bench import files
from thinwire.tools.bench.contestants import DENSE
from thinwire.tools.bench.train import ALONE, Settings
from thinwire.tools.cli import formatting
from thinwire.tools.cli.bench_reduce import Outputs
from thinwire.tools.cli.launch import Place, run

_NOTES = f"""\
Forward, backward and the optimizer's step on the slowest rank, from a common start; \
low, high: quartiles. "{ALONE}" does not communicate: what no method can be faster \
than. sent: bytes a step of the busiest rank; in a lab with TCP/IP headers. Replicas \
were bit-identical on all ranks at the end."""


def measure(
    where: Place, settings: Settings, console: Console, outputs: Outputs
) -> None:
    """Measure, show, save."""
    outputs.check()
    settings.check(where.workers)
    found = run(where, "train", asdict(settings), console)
    if found is None:
        return
    figures = {files.KIND: "train", "version": files.VERSION, **found}
    console.print(_table(figures))
    console.print(_NOTES, style="dim", highlight=False)
    if where.kind == "loopback":
        why = f" No lab can be built here ({where.why})." if where.why else ""
        console.print(
            f"The link is not shaped: local processes over loopback.{why}",
            style="yellow",
            highlight=False,
            markup=False,
        )
    outputs.write(figures, console)


def _table(figures: dict[str, Any]) -> Table:
    table = Table(
        title=f"{figures['model']}: {figures['parameters']:,} parameters, "
        f"{figures['ranks']} ranks, density {figures['density']:g}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", style="bold", overflow="fold")
    for heading in ("step", "low", "high", "x dense", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    dense = next(row for row in figures["rows"] if row["method"] == DENSE)
    for row in sorted(figures["rows"], key=lambda row: row["seconds"]):
        table.add_row(
            row["label"],
            *(formatting.milliseconds(row[key]) for key in ("seconds", "low", "high")),
            f"{dense['seconds'] / row['seconds']:.3g}",
            "-" if row["sent"] is None else formatting.nbytes(row["sent"]),
        )
    return table
