"""`thinwire demo`: methods that train for the same time on a slow network.

Where no slow network can be made, they make the same number of steps over loopback.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from thinwire import catalog
from thinwire.collectives.collective import check_density
from thinwire.errors import ConfigError
from thinwire.tools.bench.ranks import launched
from thinwire.tools.cli import demo_worker, launch
from thinwire.tools.cli.demo_progress import progress
from thinwire.tools.cli.demo_table import Result, show
from thinwire.tools.cli.options import Density, Json, takes
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.demo.loop import Look, ProgressEvent, Recipe, Run
from thinwire.tools.demo.picture import draw
from thinwire.tools.demo.race import Settings
from thinwire.tools.lab import Lab
from thinwire.tools.quantities import rate_text
from thinwire.tools.report import files

# Plain DDP; half the bytes and nothing left out, the smallest change there is; the best
# known method of PyTorch's; and ours.
DEFAULT_METHODS = "dense,bf16,powersgd-4,spardl"

_MODULE = "thinwire.tools.cli.demo_worker"


@dataclass
class Options:
    """What can be typed."""

    methods: Annotated[
        str,
        typer.Option(
            help="Methods to compare, separated by commas, or 'all'; powersgd-1, -2, "
            "... is PyTorch's."
        ),
    ] = DEFAULT_METHODS
    workers: Annotated[int, typer.Option(help="Processes to start.")] = 4
    seconds: Annotated[
        float,
        typer.Option(help="Training time of each method, without starting up."),
    ] = 25.0
    rate: Annotated[str, typer.Option(help="Of every worker's link.")] = "100mbit"
    density: Density = 0.01
    picture: Annotated[
        Path, typer.Option(help="Where to draw loss against time.", metavar="FILE")
    ] = Path("thinwire-demo.svg")
    json: Json = None


def settings(options: Options) -> Settings:
    """What to run, from what was typed."""
    check_density(options.density)
    every = options.methods == "all"
    names = tuple(catalog.METHODS) if every else launch.split(options.methods)
    recipe = Recipe(density=options.density)
    return Settings(names, options.workers, options.seconds, recipe)


@takes(Options)
def command(options: Options) -> None:
    """Train a small language model on a slow network with each method, for equal time.

    It learns from the source of Python's standard library, so nothing is downloaded.
    The network is a lab on this machine, without root: thinwire lab doctor.
    """
    run(settings(options), options)


def run(chosen: Settings, options: Options) -> None:
    """Run the demo, show its table, and write the picture and the figures."""
    picture, outputs = options.picture, Outputs(options.json)
    files.check_writable(picture)
    outputs.check()
    console = outputs.console
    if launched():
        raise ConfigError(
            "this process has a rank already, but the demo starts its own workers: "
            "start it alone, without torchrun and thinwire lab run"
        )
    where = launch.place(chosen.workers, options.rate)
    if not where.shaped:
        chosen = chosen.with_equal_steps()
        console.print(
            f"No slow network can be made here ({where.why}). So all methods make the "
            "same number of steps over loopback, where bytes cost nothing.",
            highlight=False,
        )
    _warn_if_busy()
    with progress(chosen, console) as on_progress:
        runs = _train(chosen, where, on_progress)
    result = Result(chosen, tuple(runs), where.shaped, rate_text(where.bits or 0))
    show(result, console)
    if where.shaped:
        picture.write_text(draw(runs, *result.captions), encoding="utf-8")
        console.print(f"Picture: {picture.resolve()}", highlight=False, soft_wrap=True)
    outputs.write(result.as_dict())


def _warn_if_busy() -> None:
    """Say so if other processes already keep the processors busy."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        Console(stderr=True).print(
            f"This machine is busy with other work (load {load:.0f} on {cores} "
            "processors): methods that compute more will look slower than they are.",
            highlight=False,
        )


def _train(
    chosen: Settings,
    where: launch.Place,
    on_progress: Callable[[ProgressEvent], None],
) -> list[Run]:
    listener = launch.Listener(on_progress, ProgressEvent)
    given = demo_worker.as_text(chosen)
    if where.shaped:
        with Lab(where.workers, where.rate) as lab:
            command = [sys.executable, "-m", _MODULE, given]
            code = lab.run(command, tell=listener.hear).code
    else:
        code = launch.local(where.workers, [_MODULE, given], listener)
    return [_run(each) for each in listener.conclude(code)["runs"]]


def _run(given: dict[str, Any]) -> Run:
    looks = tuple(Look(**look) for look in given.pop("looks"))
    return Run(**given, looks=looks)
