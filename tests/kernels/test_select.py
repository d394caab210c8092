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
    ways_to_cut,
)
from thinwire import kernels
from thinwire.kernels import Block, Marker
from thinwire.kernels.cpu import passes, select


def assert_selects(
    x: Tensor, k: int, block: Block, marker: Marker | None = None, number: int = 0
) -> kernels.Sparse:
    wanted = reference.select(x, k, block=block, marker=None, number=0)
    found = cpu.select(x, k, block=block, marker=marker, number=number)
    assert same_bits(found[0], wanted[0])
    assert same_bits(found[1], wanted[1])
    return found


def counts(length: int) -> set[int]:
    return {0, min(1, length), length // 100, length // 2, length}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("size", SIZES)
def test_the_reference_agrees(name, size):
    x = vector(name, size)
    for block in some_blocks(size):
        for k in counts(block.length):
            assert_selects(x, k, block)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("hint", [-1.0, -0.0, 0.0, 1e-45, 1.0, 3.0, float("inf")])
def test_no_hint_changes_a_result(name, hint):
    size = 5003
    for blocks in ways_to_cut(size):
        marker = Marker(blocks)
        marker.hints.fill(hint)
        x = torch.zeros(size)
        cpu.accumulate_(x, vector(name, size), offset=0, scale=1.0, marker=marker)
        assert all(marker.valid) == (hint >= 0)
        # What marks were made with counts, not what the hint says when they are used.
        marker.hints.fill(0.5)
        for number, block in enumerate(blocks):
            assert_selects(x, block.length // 100, block, marker, number)
            assert not marker.valid[number]


def test_an_index_has_32_bits():
    assert (
        cpu.select(torch.ones(3), 2, block=Block.whole(3), marker=None, number=0)[
            0
        ].dtype
        is torch.int32
    )


@pytest.mark.parametrize("k", [-1, 6])
def test_an_impossible_count_is_refused(k):
    with pytest.raises(ValueError, match=f"cannot select {k} of 5"):
        cpu.select(torch.ones(5), k, block=Block.whole(5), marker=None, number=0)


def test_a_block_outside_the_vector_is_refused():
    with pytest.raises(ValueError, match="does not lie"):
        cpu.select(torch.ones(5), 1, block=Block(2, 4, 4, 4), marker=None, number=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cut", range(6))
def test_error_feedback_whose_scale_jumps(cut, dtype):
    size = 20_011
    torch.manual_seed(cut)
    blocks = ways_to_cut(size)[cut]
    marker = Marker(blocks)
    x, y = torch.zeros(size), torch.zeros(size)
    for step in range(14):
        factor = 2.0 ** (10 * (step % 3 - 1)) if step > 5 else 1.0
        grad = (torch.randn(size) * factor).to(dtype)
        again = grad.clone()
        kernels.accumulate_(x, grad, marker=marker)
        reference.accumulate_(y, again, offset=0, scale=1.0, marker=None)
        assert same_bits(x, y)
        assert step == 0 or all(marker.valid)
        for number, block in enumerate(blocks):
            k = block.length // (50 if step < 10 else 200)
            indices, values = assert_selects(x, k, block, marker, number)
            kernels.subtract_at_(x, indices, values, block=block)
            reference.subtract_at_(y, indices, values, block=block)


def test_steady_gradients_are_read_once(monkeypatch):
    """In a steady state no block is marked twice, and few elements are candidates."""
    size, k = 200_000, 2000
    torch.manual_seed(0)
    marker = Marker(kernels.interleaved_blocks(size, 2, 4096))
    x = torch.zeros(size)
    marked, found = [], []
    mark, choose = passes.mark, select.choose

    def watched_choose(*args):
        answer = choose(*args)
        found.append(answer[0])
        return answer

    monkeypatch.setattr(passes, "mark", lambda *a: (marked.append(1), mark(*a)))
    monkeypatch.setattr(select, "choose", watched_choose)
    for step in range(40):
        kernels.accumulate_(x, torch.randn(size), marker=marker)
        for number, block in enumerate(marker.blocks):
            chosen = kernels.select(x, k // 2, marker=marker, number=number)
            kernels.subtract_at_(x, *chosen, block=block)
        if step == 0:
            assert len(marked) == 2
    assert len(marked) <= 4
    assert max(found[40:]) < 2 * k // 2


def test_a_miss_widens_the_next_aim():
    marker = Marker((Block.whole(10_000),))
    for factor in (1.0, 1.0, 0.001):
        x = torch.zeros(10_000)
        before = marker.slack[0]
        kernels.accumulate_(x, torch.randn(10_000) * factor, marker=marker)
        kernels.select(x, 100, marker=marker)
    assert marker.slack[0] == 2 * before


@pytest.mark.parametrize("cut", range(6))
def test_received_entries_are_candidates(cut):
    """Lazy SparDL: what is added after the pass can be selected, and can cancel."""
    size = 5003
    torch.manual_seed(cut)
    blocks = ways_to_cut(size)[cut]
    marker = Marker(blocks)
    x = torch.zeros(size)
    for step in range(4):
        kernels.accumulate_(x, torch.randn(size), marker=marker)
        for number, block in enumerate(blocks):
            quiet = torch.arange(0, block.length, 5, dtype=torch.int32)
            kernels.add_at_(
                x, quiet, torch.randn(len(quiet)) * 9, marker=marker, number=number
            )
            loud, values = reference.select(
                x, block.length // 300, block=block, marker=None, number=0
            )
            kernels.add_at_(x, loud, -values, marker=marker, number=number)
            assert marker.valid[number] == (step > 0)
            assert_selects(x, block.length // 20, block, marker, number)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_small_vector(data):
    values = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
    x = torch.tensor(data.draw(st.lists(values, max_size=200)), dtype=torch.float32)
    count, chunk = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70))
    blocks = kernels.interleaved_blocks(len(x), count, chunk)
    marker = Marker(blocks)
    hints = st.floats(-1, width=32, allow_nan=False)
    marker.hints[:] = torch.tensor(
        data.draw(st.lists(hints, min_size=count, max_size=count))
    )
    y = torch.zeros(len(x))
    cpu.accumulate_(y, x, offset=0, scale=1.0, marker=marker)
    for number, block in enumerate(blocks):
        k = data.draw(st.integers(0, block.length))
        assert_selects(y, k, block, marker, number)
