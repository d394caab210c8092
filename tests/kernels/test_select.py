import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import (
    SIZES,
    VECTORS,
    same_bits,
    some_blocks,
    vector,
)
from thinwire import kernels
from thinwire.kernels import Block


def assert_selects(x: Tensor, k: int, block: Block) -> None:
    wanted = reference.select(x, k, block=block)
    found = cpu.select(x, k, block=block)
    assert same_bits(found[0], wanted[0])
    assert same_bits(found[1], wanted[1])


def counts(length: int) -> set[int]:
    return {0, min(1, length), length // 100, length // 2, length}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("size", SIZES)
def test_the_reference_agrees(name, size):
    x = vector(name, size)
    for block in some_blocks(size):
        for k in counts(block.length):
            assert_selects(x, k, block)


def test_an_index_has_32_bits():
    assert cpu.select(torch.ones(3), 2, block=Block.whole(3))[0].dtype is torch.int32


@pytest.mark.parametrize("k", [-1, 6])
def test_an_impossible_count_is_refused(k):
    with pytest.raises(ValueError, match=f"cannot select {k} of 5"):
        cpu.select(torch.ones(5), k, block=Block.whole(5))


def test_a_block_outside_the_vector_is_refused():
    with pytest.raises(ValueError, match="does not lie"):
        cpu.select(torch.ones(5), 1, block=Block(2, 4, 4, 4))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_small_vector(data):
    values = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
    x = torch.tensor(data.draw(st.lists(values, max_size=200)), dtype=torch.float32)
    count, chunk = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70))
    blocks = kernels.interleaved_blocks(len(x), count, chunk)
    for block in blocks:
        assert_selects(x, data.draw(st.integers(0, block.length)), block)
