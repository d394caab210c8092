"""The machine of a benchmark, for its report."""

import os
import platform
from importlib.metadata import version  # importing numba takes a third of a second
from pathlib import Path

import torch


def machine() -> str:
    """Processor, cores and versions, in a line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    versions = f"torch {torch.__version__}, numba {version('numba')}"
    return f"{processor}, {os.cpu_count()} cores, {versions}"
