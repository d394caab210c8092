"""The command line: `thinwire`, the layer that talks to people."""

from thinwire.cli.app import main

__all__ = ["main"]
