"""`thinwire bench reduce`: its table, its file, its report."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from thinwire.tools.bench.reduce import Settings
from thinwire.tools.bench.torch_methods import DENSE
from thinwire.tools.cli import formatting
from thinwire.tools.cli.launch import Place, place, run, split
from thinwire.tools.cli.options import (
    Codecs,
    Density,
    Json,
    Methods,
    Parameters,
    Peers,
    Rate,
    ReportPage,
    Workers,
    method_names,
    peer_names,
    takes,
)
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.quantities import parse_count
from thinwire.tools.report import files
from thinwire.tools.report.document import draw

# With spaces, where help can wrap them.
DEFAULT_METHODS = "bf16, topk, gtopk, spardl, gs-sgd"
DEFAULT_PEERS = "torch-bf16, torch-fp16, powersgd-1, powersgd-2, powersgd-4"

_SHORT = {"accumulate": "accum.", "exchange": "exch."}

_NOTES = """\
median: of the slowest rank, from a common start to the mean on every rank; low, high: \
its quartiles. cpu: processor time of a worker. wire: bytes that the busiest rank's \
interface sent, TCP/IP included; sent: what the method counts. floor: 2 k (P - 1) / P \
entries of 16 bits and the entropy of an index. error: what \
one reduction alone leaves for later, |delivered - mean| / |mean|; near 100 % is usual \
at a density of 1 %, as the rest is remembered and delivered in later steps.
agree, exch.: waiting, for the wire and for other ranks.
All verified in this run: every rank gets the same bits, and delivered plus residual \
add up to the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOptions:
    """The options of the command."""

    methods: Methods = DEFAULT_METHODS
    peers: Peers = DEFAULT_PEERS
    parameters: Parameters = "14.7M"
    density: Density = 0.01
    codec: Codecs = ""
    workers: Workers = 4
    rate: Rate = ""
    repeats: Annotated[int, typer.Option(help="How often each method is timed.")] = 15
    seconds: Annotated[
        float,
        typer.Option(
            help="Time for one method; slow ones get fewer repeats, 3 at least."
        ),
    ] = 20.0
    json: Json = None
    page: ReportPage = None

    def settings(self, where: Place) -> Settings:
        """The settings of every rank."""
        return Settings(
            size=parse_count(self.parameters, "parameters"),
            density=self.density,
            methods=method_names(self.methods),
            codecs=split(self.codec),
            peers=peer_names(self.peers),
            repeats=self.repeats,
            seconds=self.seconds,
            place=where.network,
            rate=where.bits,
        )


@takes(ReduceOptions)
def command(options: ReduceOptions) -> None:
    """Time whole reductions: methods, codecs, and PyTorch's own, in turns.

    Start it on every rank, with torchrun or thinwire lab run. Alone it starts local
    processes: in a lab of the given rate where that can be, else over loopback, with a
    forecast for that rate.
    """
    where = place(options.workers, options.rate)
    measure(where, options.settings(where), Outputs(options.json, options.page))


def measure(where: Place, settings: Settings, outputs: Outputs) -> None:
    """Measure, show, save."""
    outputs.check()
    settings.check(where.workers)
    found = run(where, "reduce", asdict(settings))
    if found is None:
        return
    console = outputs.console
    figures = {
        files.KIND: "reduce",
        "version": files.VERSION,
        "delay": where.delay,
        **found,
    }
    show(figures, console)
    for line in remarks(figures, where):
        console.print(line, style="yellow", highlight=False, markup=False)
    outputs.write(figures, lambda: draw([figures]))


def show(figures: dict[str, Any], console: Console) -> None:
    """Show tables that fit 80 columns, and explain their terms."""
    console.print(_table(figures))
    console.print(_phases(figures))
    console.print(_NOTES, style="dim", highlight=False)


def remarks(figures: dict[str, Any], where: Place) -> list[str]:
    """Remarks on these figures."""
    said = []
    if figures["place"] == "loopback":
        text = "The link is not shaped: local processes over loopback."
        if where.why:
            text += f" No lab can be built here ({where.why})."
        if figures["rate"]:
            text += (
                f" 'at {where.rate}' is a forecast, not measured: a worker's processor "
                "time and its bytes at that rate, one after the other, as if every "
                "worker had a processor of its own."
            )
        said.append(text)
    elif figures["place"] == "lab":
        said.append(f"Links of a lab. {where.latency}")
    if figures["ranks_per_machine"] > 1:
        said.append(
            f"{figures['ranks_per_machine']} ranks share a machine's processors, "
            "so that what each computes slows the others down."
        )
    return said


def _table(figures: dict[str, Any]) -> Table:
    rate = figures["rate"]
    at = f" at {formatting.count(rate)}bit/s" if rate else ""
    link = {"lab": f"a lab{at}", "loopback": "loopback"}.get(figures["place"], "ranks")
    table = Table(
        title=f"{figures['size']:,} elements, density {figures['density']:g}, "
        f"{figures['ranks']} ranks, {link}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", style="bold", overflow="fold")
    wired = any(row["wire"] is not None for row in figures["rows"])
    heads = ["median", "low", "high", "x dense", "cpu"]
    heads += ["wire" if wired else "sent", "x floor", "error"]
    if any(row["forecast"] is not None for row in figures["rows"]):
        heads.append(f"at {formatting.count(rate)}bit")
    for heading in heads:
        table.add_column(heading, justify="right", no_wrap=True)
    dense = next(row for row in figures["rows"] if row["method"] == DENSE)
    for row in sorted(figures["rows"], key=lambda row: row["seconds"]):
        table.add_row(row["label"], *_cells(row, dense, figures["floor"]))
    return table


def _phases(figures: dict[str, Any]) -> Table:
    """Where the milliseconds of our methods go; PyTorch's do not say."""
    rows = [row for row in figures["rows"] if not row["peer"]]
    named = dict.fromkeys(name for row in rows for name in row["phases"])
    shown = [n for n in named if any(row["phases"].get(n, 0.0) > 0 for row in rows)]
    table = Table(
        title="Phases: ms, means over the ranks",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", style="bold", overflow="fold")
    for name in shown:
        table.add_column(_SHORT.get(name, name), justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: row["seconds"]):
        phases = [row["phases"].get(name, 0.0) for name in shown]
        table.add_row(row["label"], *(f"{1e3 * each:.1f}" for each in phases))
    return table


def _cells(row: dict[str, Any], dense: dict[str, Any], floor: float) -> list[str]:
    times = [row[name] for name in ("seconds", "low", "high")]
    nbytes = row["sent"] if row["wire"] is None else row["wire"]
    cells = [
        *(_ms(seconds) for seconds in times),
        f"{dense['seconds'] / row['seconds']:.3g}",
        _ms(row["cpu"]),
        formatting.nbytes(nbytes),
        f"{nbytes / floor:.3g}" if floor else "-",
        formatting.share(row["error"], 1.0),
    ]
    return cells if row["forecast"] is None else [*cells, _ms(row["forecast"])]


def _ms(seconds: float) -> str:
    return formatting.milliseconds(seconds).removesuffix(" ms")
