"""Lists of blocks become one list of the vector."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import same_bits, some_indices
from thinwire.kernels import (
    Block,
    contiguous_blocks,
    interleaved_blocks,
)


def lists_of(blocks, fill, dtype):
    generator = torch.Generator().manual_seed(5)
    lists = []
    for block in blocks:
        indices = some_indices(block.length, int(block.length * fill), dtype)
        lists.append((indices, torch.randn(len(indices), generator=generator)))
    return lists


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("fill", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "blocks",
    [
        contiguous_blocks(1000, 7),
        contiguous_blocks(3, 5),
        interleaved_blocks(1000, 7, 1),
        interleaved_blocks(1003, 3, 64),
        interleaved_blocks(5003, 4, 128),
        interleaved_blocks(100, 4, 64),
        (Block.whole(77),),
        (Block(0, 1, 2, 50), Block(1, 3, 6, 50)),  # neither: overlapping, in any order
    ],
)
def test_join(blocks, fill, dtype):
    lists = lists_of(blocks, fill, dtype)
    indices, values = cpu.join(lists, blocks)
    wanted, wanted_values = reference.join(lists, blocks)
    assert same_bits(indices, wanted)
    assert same_bits(values, wanted_values)
    assert indices.dtype == torch.int32


def test_every_element_comes_back_to_its_place():
    x = torch.randn(999)
    for blocks in (contiguous_blocks(999, 4), interleaved_blocks(999, 4, 32)):
        lists = [
            (torch.arange(b.length), cpu.gather(x, torch.arange(b.length), block=b))
            for b in blocks
        ]
        indices, values = cpu.join(lists, blocks)
        assert torch.equal(indices, torch.arange(999, dtype=torch.int32))
        assert same_bits(values, x)
