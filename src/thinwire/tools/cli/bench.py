"""`thinwire bench`: the commands that measure, and their options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire import catalog
from thinwire.tools.bench import files, reduce, report
from thinwire.tools.bench import train as training
from thinwire.tools.cli import bench_codecs, bench_net, bench_reduce, bench_train
from thinwire.tools.cli.formatting import parse_count
from thinwire.tools.cli.launch import place, split

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
Rate = Annotated[
    str,
    typer.Option(help="Measure in a lab of this rate, such as 1gbit. Needs root."),
]
Repeats = Annotated[int, typer.Option(help="How often each method is timed.")]
Report = Annotated[
    Path | None,
    typer.Option("--report", help="Also write a page of charts.", metavar="FILE"),
]
Methods = Annotated[
    str,
    typer.Option(
        help="Methods, separated by commas, or 'all'; options after colons, as in "
        "spardl:teams=2."
    ),
]
Peers = Annotated[
    str,
    typer.Option(help="What of PyTorch's to compare with, or 'none'; dense always."),
]
Codecs = Annotated[
    str,
    typer.Option(
        help="Codecs, separated by commas: each method with each of them. The "
        "method's own if not given."
    ),
]


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


@app.command("reduce")
def reduce_gradients(
    *,
    methods: Methods = bench_reduce.DEFAULT_METHODS,
    peers: Peers = bench_reduce.DEFAULT_PEERS,
    size: Annotated[
        str, typer.Option(help="Elements of the gradient.", metavar="NUMBER")
    ] = "14.7e6",
    density: Density = 0.01,
    codec: Codecs = "",
    workers: Workers = 4,
    rate: Rate = "",
    repeats: Repeats = 15,
    seconds: Annotated[
        float,
        typer.Option(
            help="Time for one method; slow ones get fewer repeats, 3 at least."
        ),
    ] = 20.0,
    json: Json = None,
    page: Report = None,
) -> None:
    """Time whole reductions: methods, codecs, and PyTorch's own, in turns.

    Start it on every rank, with torchrun or thinwire lab run. Alone it starts local
    processes: in a lab of the given rate where that can be, else over loopback, with a
    forecast for that rate.
    """
    where = place(workers, rate)
    settings = reduce.Settings(
        size=parse_count(size, "size"),
        density=density,
        methods=_methods(methods),
        codecs=split(codec),
        peers=_peers(peers),
        repeats=repeats,
        seconds=seconds,
        place=where.network,
        rate=where.bits,
    )
    outputs = bench_reduce.Outputs(json, page)
    bench_reduce.measure(where, settings, Console(), outputs)


@app.command()
def train(
    *,
    model: Annotated[
        str,
        typer.Option(
            help="vgg16, resnet20 or mlp; or module:function of yours, which returns a "
            "model and a function loss(model)."
        ),
    ] = "vgg16",
    methods: Methods = bench_reduce.DEFAULT_METHODS,
    peers: Peers = "torch-bf16,powersgd-1",
    density: Density = 0.01,
    codec: Codecs = "",
    scope: Annotated[
        str, typer.Option(help="bucket (overlaps with backward) or model.")
    ] = "bucket",
    workers: Workers = 4,
    rate: Rate = "",
    steps: Annotated[int, typer.Option(help="Timed steps of each method.")] = 15,
    json: Json = None,
    page: Report = None,
) -> None:
    """Time training steps of a model with each method, in turns.

    Start it on every rank, with torchrun or thinwire lab run, or alone.
    """
    where = place(workers, rate)
    settings = training.Settings(
        model=model,
        density=density,
        methods=_methods(methods),
        codecs=split(codec),
        peers=_peers(peers),
        steps=steps,
        scope=scope,
        place=where.network,
        rate=where.bits,
    )
    outputs = bench_reduce.Outputs(json, page)
    bench_train.measure(where, settings, Console(), outputs)


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


def _methods(text: str) -> tuple[str, ...]:
    return tuple(catalog.METHODS) if text == "all" else split(text)


def _peers(text: str) -> tuple[str, ...]:
    return () if text == "none" else split(text)
