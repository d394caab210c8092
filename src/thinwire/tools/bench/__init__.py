"""Measurements: what the command line and the scripts in `benchmarks/` share."""
