"""Reducers: a gradient in, its average out."""

from thinwire.reducers.pipeline import OnNonfinite, Pipeline, State, write_mean_

__all__ = ["OnNonfinite", "Pipeline", "State", "write_mean_"]
