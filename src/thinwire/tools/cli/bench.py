"""`thinwire bench`: the commands that measure, and their options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire.tools.bench import files, report
from thinwire.tools.cli import bench_codecs, bench_net, bench_reduce, bench_train
from thinwire.tools.cli.launch import place
from thinwire.tools.cli.options import Density, Json, Rate, Workers

app = typer.Typer(
    help="Measure networks, reductions, training and codecs.", no_args_is_help=True
)


@app.command()
def net(
    *,
    workers: Workers = 4,
    rate: Rate = "",
    out: Annotated[
        Path, typer.Option(help="Where the profile goes.", metavar="FILE")
    ] = Path("link.json"),
) -> None:
    """Measure latency and bandwidth between ranks; save them as a link profile.

    Start it on every rank, with torchrun or thinwire lab run. Alone it starts local
    processes, whose link is not shaped.
    """
    bench_net.measure(place(workers, rate), out, Console())


app.command("reduce")(bench_reduce.command)
app.command("train")(bench_train.command)


@app.command("report")
def merge_reports(
    figures: Annotated[
        list[Path], typer.Argument(help="Files written with --json.", metavar="FILE...")
    ],
    *,
    out: Annotated[
        Path, typer.Option(help="Where the page goes.", metavar="FILE")
    ] = Path("report.html"),
) -> None:
    """Draw figures of several runs on one page: one file of HTML, nothing else."""
    files.check_folder(out)
    out.write_text(report.page([files.read(path) for path in figures]))
    Console().print(f"Report written to {out}", highlight=False, soft_wrap=True)


@app.command("codecs")
def codecs(
    *,
    tensor: Annotated[
        Path,
        typer.Option(
            help="A file from torch.save: a gradient, or a dict of tensors.",
            metavar="FILE",
        ),
    ],
    density: Density = 0.01,
    names: Annotated[
        str,
        typer.Option(
            "--codecs",
            help="Codecs, separated by commas, such as rice+log4,rice+int8; a dozen "
            "of them if not given.",
            show_default=False,
        ),
    ] = bench_codecs.DEFAULT_CODECS,
    json: Json = None,
) -> None:
    """Encode the largest elements of a tensor with each codec: bits, time, error."""
    bench_codecs.run(tensor, density, names, console=Console(), file=json)
