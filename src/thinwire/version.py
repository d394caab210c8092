"""The version of the package, written down once."""

__version__ = "0.1.0"
