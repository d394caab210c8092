"""Blocks to cut a vector into, and the passes over it, counted."""

import pytest

from tests.accumulator.twin import WAYS, counting
from thinwire.kernels.cpu import extract, passes


@pytest.fixture(params=list(WAYS))
def blocks(request):
    return WAYS[request.param]


@pytest.fixture
def extractions(monkeypatch):
    return counting(monkeypatch, extract, "accumulate_and_extract")


@pytest.fixture
def markings(monkeypatch):
    return counting(monkeypatch, passes, "accumulate_and_mark")
