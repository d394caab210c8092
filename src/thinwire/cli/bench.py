"""`thinwire bench`: the commands that measure, and their options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire.cli import bench_codecs, bench_net
from thinwire.cli.launch import place

app = typer.Typer(
    help="Measure networks, reductions, training and codecs.", no_args_is_help=True
)

Density = Annotated[
    float, typer.Option(help="Fraction of the gradient that is kept: 0.01 is 1 %.")
]
Workers = Annotated[
    int,
    typer.Option(help="Processes to start, where none were started by torchrun."),
]
Json = Annotated[
    Path | None,
    typer.Option(help="Also write the figures to this file.", metavar="FILE"),
]


@app.command()
def net(
    *,
    workers: Workers = 4,
    rate: Annotated[
        str,
        typer.Option(help="Measure in a lab of this rate, such as 1gbit. Needs root."),
    ] = "",
    out: Annotated[
        Path, typer.Option(help="Where the profile goes.", metavar="FILE")
    ] = Path("link.json"),
) -> None:
    """Measure latency and bandwidth between ranks; save them as a link profile.

    Start it on every rank, with torchrun or thinwire lab run. Alone it starts local
    processes, whose link is not shaped.
    """
    bench_net.measure(place(workers, rate), out, Console())


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
