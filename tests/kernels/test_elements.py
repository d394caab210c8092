"""Reading and writing elements of a block: gather, add_at_, subtract_at_, scatter_."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import (
    SIZES,
    same_bits,
    some_blocks,
    some_indices,
    vector,
)
from thinwire.kernels import Block

INDEX_DTYPES = (torch.int32, torch.int64)


def lists_over(size, dtype):
    for block in some_blocks(size):
        for count in {0, min(1, block.length), block.length // 3, block.length}:
            indices = some_indices(block.length, count, dtype)
            yield block, indices, vector("octaves", count)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_gather_add_subtract(size, dtype):
    x = vector("octaves", size)
    y = x.clone()
    for block, indices, values in lists_over(size, dtype):
        wanted = reference.gather(y, indices, block=block)
        assert same_bits(cpu.gather(x, indices, block=block), wanted)
        given = {"block": block}
        cpu.add_at_(x, indices, values, **given)
        reference.add_at_(y, indices, values, **given)
        assert same_bits(x, y)
        cpu.subtract_at_(x, indices, values * 0.3, block=block)
        reference.subtract_at_(y, indices, values * 0.3, block=block)
        assert same_bits(x, y)


def test_subtracting_what_was_there_leaves_a_positive_zero():
    x = torch.tensor([-1.0, 0.0, -0.0, 2.0])
    cpu.subtract_at_(x, torch.arange(4), x.clone(), block=Block.whole(4))
    assert same_bits(x, torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("divisor", [1.0, 3.0, 7.0, 8.0])
@pytest.mark.parametrize("size", SIZES)
def test_scatter(size, divisor, dtype):
    out, other = (torch.full((size,), 5.0, dtype=dtype) for _ in range(2))
    for block, indices, values in lists_over(size, torch.int32):
        cpu.scatter_(out, indices, values, block=block, divisor=divisor)
        reference.scatter_(other, indices, values, block=block, divisor=divisor)
        assert same_bits(out, other)


@pytest.mark.parametrize("bad", [[-1, 2], [0, 10], [3, 2**31 - 1]])
def test_an_index_outside_the_block_is_not_followed(bad):
    x = torch.zeros(40)
    block = Block(start=4, chunk=5, stride=20, length=10)
    indices, values = torch.tensor(bad, dtype=torch.int32), torch.ones(2)
    for call in (
        lambda: cpu.gather(x, indices, block=block),
        lambda: cpu.add_at_(x, indices, values, block=block),
        lambda: cpu.subtract_at_(x, indices, values, block=block),
        lambda: cpu.scatter_(x, indices, values, block=block, divisor=1.0),
    ):
        with pytest.raises(IndexError, match="outside a block of 10"):
            call()
    inside = torch.tensor([block.position(j) for j in range(10)])
    x[inside] = 0
    assert not x.any()
