from itertools import product

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import SIZES, VECTORS, same_bits, vector

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_reference_agrees(size, dtype):
    edges = [0, 0, 1, size // 3, size // 3 + 65, size - 1, size]
    bounds = torch.tensor(edges).clamp(0, size).sort().values
    for name in VECTORS:
        v = vector(name, size).to(dtype)
        found = cpu.magnitudes(v, bounds)
        assert same_bits(found, reference.magnitudes(v, bounds))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
def test_one_bad_element_anywhere_is_seen(bad, dtype):
    bounds = torch.tensor([0, 100, 300])
    for at in (0, 63, 64, 99):
        v = torch.ones(300, dtype=dtype)
        v[at] = bad
        assert cpu.magnitudes(v, bounds).tolist() == [float("inf"), 1.0]


@pytest.mark.parametrize("at", range(64))
def test_every_lane_is_looked_at(at):
    v = torch.zeros(64)
    v[at] = -2.0
    assert cpu.magnitudes(v, torch.tensor([0, 64])).tolist() == [2.0]
    assert cpu.magnitudes(v.bfloat16(), torch.tensor([0, 64])).tolist() == [2.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_row_peaks_are_the_magnitudes_of_rows(size, dtype):
    for name, width in product(VECTORS, (2, 5, 64, 200)):
        v = vector(name, size).to(dtype)
        edges = torch.arange(-(-size // width) + 1) * width
        peaks = cpu.magnitudes(v, edges.clamp_(max=size))
        assert same_bits(cpu.row_peaks(v, width), peaks)
        assert same_bits(reference.row_peaks(v, width), peaks)


@pytest.mark.parametrize("size", SIZES)
def test_at_least(size):
    for name, least in product(VECTORS, (0.0, 2.0**-149, 2.5, 3e38)):
        v = vector(name, size)
        found = cpu.at_least(v, least)
        assert same_bits(found, reference.at_least(v, least))
        worth = (v != 0) & ~(v.abs() < least)
        assert found.tolist() == worth.nonzero().view(-1).tolist()
