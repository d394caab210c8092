"""`thinwire report`: figures of several runs on one page."""

from pathlib import Path
from typing import Annotated

import typer

from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.report import files
from thinwire.tools.report.document import draw


def command(
    figures: Annotated[
        list[Path], typer.Argument(help="Files written with --json.", metavar="FILE...")
    ],
    *,
    out: Annotated[
        Path, typer.Option(help="Where the page goes.", metavar="FILE")
    ] = Path("report.html"),
) -> None:
    """Draw figures of several runs on one page: one file of HTML, nothing else."""
    outputs = Outputs(page=out)
    outputs.check()
    found = [each for path in figures for each in files.read(path)]
    outputs.write({}, lambda: draw(found))
