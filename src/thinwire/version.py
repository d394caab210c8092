"""The version of the package, written down once."""

__version__ = "0.2.0"
