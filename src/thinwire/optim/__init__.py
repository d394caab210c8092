"""Optimizers for gradients of which each step delivers a part."""

from thinwire.optim.adamw import AdamW

__all__ = ["AdamW"]
