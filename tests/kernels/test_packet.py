"""Whole packets on the CPU: the reference's bits, and what is refused."""

import pytest
import torch

from tests.backends import cpu, reference
from thinwire.codecs.elias_fano import low_bits
from thinwire.kernels import index_dtype

HEADER = torch.arange(32, dtype=torch.uint8)


def drawn(size, nnz):
    """A list over `size` elements, and values that round up, down and to even."""
    torch.manual_seed(nnz)
    indices = torch.randint(0, max(size, 1), (nnz,)).unique().to(index_dtype(size))
    return indices, torch.randn(len(indices)) * 2.0 ** torch.randint(
        -130, 120, (len(indices),)
    )


SHAPES = [(0, 0), (70, 0), (1, 1), (16, 5), (9003, 301), (20_011, 1101), (2**33, 40)]


@pytest.mark.parametrize(("size", "nnz"), SHAPES)
def test_both_ways(size, nnz):
    indices, values = drawn(size, nnz)
    nnz = len(indices)
    for low in (low_bits(size, nnz), None)[: 1 + (size < 2**31)]:
        given = (HEADER, indices, values, size, low)
        body = cpu.encode_packet(*given)
        assert torch.equal(body, reference.encode_packet(*given))
        listed = cpu.decode_packet(body, 32, size, nnz, low=low)
        assert torch.equal(listed[0], indices)
        assert torch.equal(listed[1], values.bfloat16().float())
        assert listed[0].dtype == indices.dtype


def test_strided_tensors_are_encoded():
    indices, values = drawn(9003, 301)
    wide = [torch.stack([part, part], 1)[:, 0] for part in (indices, values)]
    assert not wide[0].is_contiguous()
    wanted = cpu.encode_packet(HEADER, indices, values, 9003, 4)
    assert torch.equal(cpu.encode_packet(HEADER, *wide, 9003, 4), wanted)


@pytest.mark.parametrize("low", [4, None])
@pytest.mark.parametrize("backend", [cpu, reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("damage", ["a one too many", "a one too few", "after the end"])
def test_damage_is_refused(low, backend, damage):
    indices, values = drawn(9003, 301)
    nnz = len(indices)
    body = reference.encode_packet(HEADER, indices, values, 9003, low)
    end = len(body) - 2 * (-(-nnz // 4) * 4)  # of the indices
    if damage == "after the end":
        assert nnz % 4
        body[-1] = 1
    elif damage == "a one too many":
        body[end - 9] = 255
    else:
        body[end - 16 : end] = 0
    with pytest.raises(ValueError, match=r"indices|after the end"):
        backend.decode_packet(body, 32, 9003, nnz, low=low)


def test_indices_that_do_not_ascend_are_not_encoded():
    falling = torch.tensor([7000, 300], dtype=torch.int32)
    for low in (4, None):
        with pytest.raises(IndexError, match="do not increase"):
            cpu.encode_packet(HEADER, falling, torch.ones(2), 9003, low)


@pytest.mark.parametrize(
    "values", [torch.ones(1), torch.ones(3), torch.ones(2, dtype=torch.float64)]
)
def test_as_many_values_as_indices(values):
    indices = torch.tensor([3, 9000], dtype=torch.int32)
    with pytest.raises(ValueError, match="as many of both"):
        cpu.encode_packet(HEADER, indices, values, 9003, 4)
