"""What the tests of Triton kernels share: on a CUDA device, or interpreted.

Without a device Triton's interpreter (see `tests/conftest.py`) runs the same kernels on
the CPU, slowly, so vectors are short.
"""

import pytest
import torch

from tests.kernels.kernel_inputs import same_bits, some_indices, vector

pytest.importorskip("triton", reason="needs Triton")

ON_DEVICE = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_DEVICE else "cpu")
SIZE = 300_007 if ON_DEVICE else 2003
LIST = 30_011 if ON_DEVICE else 803
EVERY_BYTE = bytes(range(256))

on_device = pytest.mark.skipif(not ON_DEVICE, reason="needs a CUDA device")
# The interpreter computes with numpy, which warns of what is not finite.
CUDA = [
    pytest.mark.gpu
    if ON_DEVICE
    else pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("lists_for_short_blocks"),
]


def drawn(name: str, size: int) -> torch.Tensor:
    return vector(name, size).to(DEVICE)


def drawn_indices(size: int, count: int, dtype=torch.int32) -> torch.Tensor:
    torch.manual_seed(size + count)
    return some_indices(size, count, dtype).to(DEVICE)


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert same_bits(a, b)
