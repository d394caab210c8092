"""Adapters between reducers and training frameworks."""

from thinwire.hooks import ddp

__all__ = ["ddp"]
