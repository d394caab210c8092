"""Memory for vectors that are read in order and at random in every step.

Where the system has pages of 2 MB, one entry of the page table stands for 512 usual
pages.
"""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

# Smaller vectors are not worth pages of 2 MB.
_LEAST = 1 << 20


def zeros(size: int, device: torch.device | None = None) -> Tensor:
    """A vector of float32 zeros; in large pages nothing is touched until it is used.

    >>> zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    here = device is None or device.type == "cpu"
    if not here or size < _LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, device=device, dtype=torch.float32)
    pages = mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the system has no such pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32)
