"""The command line: `thinwire`."""

import sys
from collections.abc import Sequence

_PACKAGES = frozenset({"typer", "rich"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; where a package of the extra is missing, name the extra."""
    try:
        from thinwire.tools.cli.app import app, run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _PACKAGES:
            raise
        sys.exit(
            f"Error: the thinwire command needs {package}, which is not installed: "
            "pip install 'thinwire[tools]'"
        )
    run(app, arguments)


__all__ = ["main"]
