"""Vectors of zeros: alignment and large pages."""

import errno
import mmap
import re
from pathlib import Path

import pytest
import torch

from thinwire import kernels

LARGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("size", [0, 1, 17, 2**20 - 1, 2**20, 5_000_001])
def test_zeros(size):
    x = kernels.zeros(size)
    assert (x.dtype, x.shape, x.is_contiguous()) == (torch.float32, (size,), True)
    assert not x.any()
    assert size == 0 or x.data_ptr() % 64 == 0
    x += 1
    assert x.sum() == size


def test_without_large_pages(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("thinwire.kernels.memory.mmap.mmap", Plain)
    x = kernels.zeros(2_000_000)
    x += 1
    assert x.sum() == 2_000_000


def in_large_pages():
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages:\s+(\d+)", text)[1])


@pytest.mark.skipif(
    not LARGE.exists() or "[madvise]" not in LARGE.read_text(),
    reason="this system lends large pages to none, or to all",
)
def test_large_pages_are_asked_for():
    before = in_large_pages()
    x = kernels.zeros(16_000_000)
    x += 1
    assert in_large_pages() - before > 30_000  # kB, of 64,000
