"""Momentum: a velocity before selection, zero where the total lists an entry."""

import pytest
import torch

from thinwire import kernels
from thinwire.errors import ConfigError
from thinwire.feedback import Momentum, Residual
from thinwire.feedback import momentum as module
from thinwire.kernels import contiguous_blocks
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

CPU = torch.device("cpu")


def memory_of(velocity, residual, scale=1.0):
    memory = Momentum().init(Layout.flat(len(residual)), CPU)
    memory.saved["momentum"].whole().copy_(torch.as_tensor(velocity))
    memory.x.whole().copy_(torch.as_tensor(residual))
    memory.scale = scale
    return memory


def held(memory):
    return memory.saved["momentum"].whole().tolist(), memory.x.whole().tolist()


def test_it_starts_from_nothing_and_saves_both_vectors():
    memory = Momentum().init(Layout.flat(3), CPU)
    assert list(memory.saved) == ["residual", "momentum"]
    assert memory.saved["residual"] is memory.x
    for vector in memory.saved.values():
        assert vector.whole().dtype == torch.float32
        assert vector.whole().tolist() == [0, 0, 0]


def test_three_steps_by_hand():
    feedback, memory = Momentum(0.5), memory_of([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])

    feedback.accumulate([torch.tensor([4.0, 1.0, -2.0])], memory)
    assert held(memory) == ([4, 1, -2], [4, 1, -2])
    memory.x.whole()[0] = 0.0  # the collective delivers the first
    feedback.settle(SparseVector.of({0: 4.0}, 3), memory)
    assert held(memory) == ([0, 1, -2], [0, 1, -2])

    feedback.accumulate([torch.tensor([1.0, 1.0, 0.0])], memory)
    assert held(memory) == ([1, 1.5, -1], [1, 2.5, -3])
    memory.x.whole()[2] = 0.0
    feedback.settle(SparseVector.of({2: -3.0}, 3), memory)
    assert held(memory) == ([1, 1.5, 0], [1, 2.5, 0])

    feedback.accumulate([torch.tensor([0.0, 0.25, 2.0])], memory)
    assert held(memory) == ([0.5, 1, 2], [1.5, 3.5, 2])


def test_the_mask_is_where_a_sparse_total_is_not_zero():
    memory = memory_of([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0])
    Momentum().settle(SparseVector.of({1: 9.0, 3: 0.0}, 4), memory)
    assert held(memory) == ([1, 0, 3, 4], [5, 6, 7, 8])
    Momentum().settle(SparseVector.of({}, 4), memory)
    assert held(memory) == ([1, 0, 3, 4], [5, 6, 7, 8])


def test_a_dense_total_masks_nothing():
    memory = memory_of([1.0, 2.0], [3.0, 4.0])
    Momentum().settle(torch.ones(2), memory)
    assert held(memory) == ([1, 2], [3, 4])


@pytest.mark.parametrize("copied", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(5,), (2, 3), (0, 4, 0, 1)])
def test_pieces_are_added_and_consumed(monkeypatch, copied, dtype, lengths):
    monkeypatch.setattr(module, "PIECE", copied)
    memory = memory_of([2.0, 4.0, 6.0, 8.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    grad = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0], dtype=dtype).split(lengths)
    pieces = [piece.clone() for piece in grad]
    Momentum(0.5).accumulate(pieces, memory)
    assert held(memory) == ([11, 22, 33, 44, 50], [12, 24, 36, 48, 55])
    assert all(torch.count_nonzero(piece) == 0 for piece in pieces)


def test_nothing_to_accumulate():
    memory = memory_of([], [])
    Momentum().accumulate([], memory, scale=4.0)
    assert memory.scale == 4.0


@pytest.mark.parametrize("old", [2.0**16, 1.0, 2.0**-3])
@pytest.mark.parametrize("new", [2.0**17, 2.0**16, 2.0**-3])
def test_a_scale_that_moves_by_powers_of_two_loses_nothing(monkeypatch, old, new):
    monkeypatch.setattr(module, "PIECE", 300)
    torch.manual_seed(3)
    velocity, residual, grad = torch.randn(3, 1000)
    true = memory_of(velocity, residual)
    Momentum(0.9).accumulate([grad.clone()], true)
    scaled = memory_of(velocity * old, residual * old, old)
    Momentum(0.9).accumulate([grad * new], scaled, scale=new)
    for kind, vector in true.saved.items():
        assert torch.equal(scaled.saved[kind].whole(), vector.whole() * new)
    assert scaled.scale == new


def test_without_momentum_it_is_a_residual():
    torch.manual_seed(3)
    memory, plain = (
        f.init(Layout.flat(1000), CPU) for f in (Momentum(0.0), Residual())
    )
    for grad in torch.randn(3, 1000):
        Momentum(0.0).accumulate([grad.clone()], memory)
        Residual().accumulate([grad], plain)
    assert torch.equal(memory.x.whole(), plain.x.whole())


@pytest.mark.parametrize("copied", [37, 64, 1000, 2**20])
@pytest.mark.parametrize("blocks", [1, 3])
def test_selection_finds_what_was_marked(monkeypatch, copied, blocks):
    monkeypatch.setattr(module, "PIECE", copied)
    size, k = 5003, 50
    memory = Momentum().init(Layout.flat(size), CPU)
    x, y = memory.x, torch.zeros(size)
    x.set_blocks(contiguous_blocks(size, blocks))
    torch.manual_seed(3)
    for step in range(4):
        grad = torch.randn(size).split([2000, size - 2000])
        Momentum().accumulate(grad, memory, scale=2.0**step)
        y = (2 * y if step else y) + memory.saved["momentum"].whole()
        taken = x.take([k] * blocks)
        for block, found in zip(x.blocks, taken, strict=True):
            with kernels.by_reference():
                wanted = kernels.select(y, k, block=block)
                kernels.subtract_at_(y, *wanted, block=block)
            assert all(map(torch.equal, found, wanted))
        assert torch.equal(x.whole(), y)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, float("nan"), float("inf")])
def test_bad_values_are_refused(bad):
    with pytest.raises(ConfigError, match=f"momentum is {bad}: .* less than 1"):
        Momentum(bad)
