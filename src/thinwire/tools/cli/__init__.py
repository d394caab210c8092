"""The command line: `thinwire`, the layer that talks to people."""

from thinwire.tools.cli.app import main

__all__ = ["main"]
