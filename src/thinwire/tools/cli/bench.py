"""`thinwire bench`: the commands that measure, and their options."""

from pathlib import Path
from typing import Annotated

import typer

from thinwire.tools.cli import bench_codecs, bench_net, bench_reduce, bench_train
from thinwire.tools.cli import report as report_command
from thinwire.tools.cli.command import Command
from thinwire.tools.cli.launch import place
from thinwire.tools.cli.options import Density, Json, Rate, Workers
from thinwire.tools.cli.outputs import Outputs

app = typer.Typer(
    help="Measure networks, reductions, training and codecs.", no_args_is_help=True
)


@app.command(cls=Command)
def net(
    *,
    workers: Workers = 4,
    rate: Rate = "",
    out: Annotated[
        Path, typer.Option(help="Where the profile goes.", metavar="FILE")
    ] = Path("link.json"),
    json: Json = None,
) -> None:
    """Measure latency and bandwidth between ranks; save them as a link profile.

    Start it on every rank, with torchrun or thinwire lab run. Alone it starts local
    processes, whose link is not shaped.
    """
    bench_net.measure(place(workers, rate), out, Outputs(json))


app.command("reduce", cls=Command)(bench_reduce.command)
app.command("train", cls=Command)(bench_train.command)


# Its old place.
app.command("report", hidden=True)(report_command.command)


@app.command("codecs", cls=Command)
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
    bench_codecs.run(tensor, density, names, Outputs(json))
