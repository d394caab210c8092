"""The program `thinwire`: its commands are loaded when they are called."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from thinwire.errors import ThinwireError
from thinwire.tools.cli.command import Commands
from thinwire.version import __version__

app = typer.Typer(
    name="thinwire",
    cls=Commands,
    help="Sparse gradients for data-parallel PyTorch on slow networks.",
    epilog="Start with: thinwire demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error of the library is a message, not a traceback."""
    try:
        app(arguments)
    except ThinwireError as error:
        Console(stderr=True).print(f"Error: {error}", markup=False, highlight=False)
        sys.exit(2)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - how typer calls back
    if wanted:
        Console().print(f"thinwire {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def thinwire(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Sparse gradients for data-parallel PyTorch on slow networks."""
