"""Experiments of the documentation, run from a checkout: not part of the wheel."""
