"""Reducers: a gradient in, its mean over all ranks out."""

from thinwire.reducers.mean import write_mean_
from thinwire.reducers.pipeline import OnNonfinite, Pipeline, UnitState

__all__ = ["OnNonfinite", "Pipeline", "UnitState", "write_mean_"]
