"""`thinwire demo`: its options."""

from typing import Annotated

import typer
from rich.console import Console

from thinwire.tools.cli import demo
from thinwire.tools.cli.options import Density, Json


def command(
    *,
    methods: Annotated[
        str,
        typer.Option(help="Methods to compare, separated by commas, or 'all'."),
    ] = demo.DEFAULT_METHODS,
    workers: Annotated[int, typer.Option(help="Local processes to start.")] = 4,
    seconds: Annotated[
        float,
        typer.Option(help="Time for everything; each method makes at least 10 steps."),
    ] = 120.0,
    density: Density = 0.01,
    json: Json = None,
) -> None:
    """Train a small language model with each method; compare bytes and losses.

    It learns from the source of Python's standard library, so nothing is downloaded.
    """
    settings = demo.settings(methods, workers, seconds, density)
    demo.run(settings, Console(), json)
