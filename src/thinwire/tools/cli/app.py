"""The commands and their options. Each command's work is in a module of its name."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from thinwire.errors import ThinwireError
from thinwire.tools.cli import bench as bench_commands
from thinwire.tools.cli import demo as demo_command
from thinwire.tools.cli import doctor as doctor_command
from thinwire.tools.cli import lab as lab_commands
from thinwire.tools.cli import methods as methods_command
from thinwire.tools.cli import plan as plan_command
from thinwire.tools.cli.formatting import parse_count
from thinwire.tools.cli.options import Density
from thinwire.version import __version__

app = typer.Typer(
    name="thinwire",
    help="Sparse gradients for data-parallel PyTorch on slow networks.",
    epilog="Start with: thinwire demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench_commands.app, name="bench")
app.add_typer(lab_commands.app, name="lab")


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


@app.command()
def methods(
    *,
    size: Annotated[
        str,
        typer.Option(help="Elements of the gradient.", metavar="NUMBER"),
    ] = "25e6",
    density: Density = 0.01,
    ranks: Annotated[int, typer.Option(help="Number of workers.")] = 8,
    json: Annotated[bool, typer.Option(help="Print JSON instead of tables.")] = False,
) -> None:
    """List the methods, and what each would send for a gradient of some size."""
    cards = methods_command.Cards(parse_count(size, "size"), density, ranks)
    console = Console()
    if json:
        console.print_json(data=cards.as_dict())
    else:
        methods_command.show(cards, console)


app.command("demo")(demo_command.command)
app.command("plan")(plan_command.command)
app.command("doctor")(doctor_command.command)
