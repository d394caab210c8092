"""What a benchmark ran on, for its report."""

from thinwire.bench.machine import machine

__all__ = ["machine"]
