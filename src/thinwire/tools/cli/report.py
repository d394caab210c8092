"""`thinwire report`: figures of several runs on one page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire.tools.bench import files, report


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
    files.check_folder(out)
    out.write_text(report.page([files.read(path) for path in figures]))
    Console().print(f"Report written to {out}", highlight=False, soft_wrap=True)
