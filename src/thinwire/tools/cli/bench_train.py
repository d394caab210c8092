"""`thinwire bench train`: its table and its files."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from thinwire.tools.bench.torch_methods import DENSE
from thinwire.tools.bench.train import ALONE, Settings
from thinwire.tools.cli import formatting
from thinwire.tools.cli.bench_reduce import DEFAULT_METHODS
from thinwire.tools.cli.launch import Place, place, run, split
from thinwire.tools.cli.options import (
    Codecs,
    Density,
    Json,
    Methods,
    Peers,
    Rate,
    ReportPage,
    Workers,
    method_names,
    peer_names,
    takes,
)
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.report import files
from thinwire.tools.report.document import draw

_NOTES = f"""\
Forward, backward and the optimizer's step on the slowest rank, from a common start; \
low, high: quartiles. "{ALONE}" does not communicate: what no method can be faster \
than. sent: bytes a step of the busiest rank; in a lab with TCP/IP headers. Replicas \
were bit-identical on all ranks at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of the command."""

    model: Annotated[
        str,
        typer.Option(
            help="vgg16, resnet20 or mlp; or module:function of yours, which returns a "
            "model and a function loss(model)."
        ),
    ] = "vgg16"
    methods: Methods = DEFAULT_METHODS
    peers: Peers = "torch-bf16, powersgd-1"
    density: Density = 0.01
    codec: Codecs = ""
    scope: Annotated[
        str, typer.Option(help="bucket (overlaps with backward) or model.")
    ] = "bucket"
    workers: Workers = 4
    rate: Rate = ""
    steps: Annotated[int, typer.Option(help="Timed steps of each method.")] = 15
    json: Json = None
    page: ReportPage = None

    def settings(self, where: Place) -> Settings:
        """The settings of every rank."""
        return Settings(
            model=self.model,
            density=self.density,
            methods=method_names(self.methods),
            codecs=split(self.codec),
            peers=peer_names(self.peers),
            steps=self.steps,
            scope=self.scope,
            place=where.network,
            rate=where.bits,
        )


@takes(TrainOptions)
def command(options: TrainOptions) -> None:
    """Time training steps of a model with each method, in turns.

    Start it on every rank, with torchrun or thinwire lab run, or alone.
    """
    where = place(options.workers, options.rate)
    measure(where, options.settings(where), Outputs(options.json, options.page))


def measure(where: Place, settings: Settings, outputs: Outputs) -> None:
    """Measure, show, save."""
    outputs.check()
    settings.check(where.workers)
    found = run(where, "train", asdict(settings))
    if found is None:
        return
    console = outputs.console
    figures = {
        files.KIND: "train",
        "version": files.VERSION,
        "delay": where.delay,
        **found,
    }
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
    outputs.write(figures, lambda: draw([figures]))


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
