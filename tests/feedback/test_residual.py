"""Residual: what was not delivered is in the next step, bit for bit."""

import pytest
import torch

from thinwire.feedback import Residual
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

CPU = torch.device("cpu")


def memory_of(values, scale=1.0):
    memory = Residual().init(Layout.flat(len(values)), CPU)
    memory.x.whole().copy_(torch.tensor(values))
    memory.scale = scale
    return memory


def test_it_starts_from_nothing_and_saves_the_vector_it_works_on():
    memory = Residual().init(Layout.flat(3), CPU)
    assert memory.x.whole().tolist() == [0, 0, 0]
    assert memory.x.whole().dtype == torch.float32
    assert list(memory.saved) == ["residual"]
    assert memory.saved["residual"] is memory.x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(5,), (2, 3), (0, 4, 0, 1)])
def test_pieces_are_added_and_consumed(dtype, lengths):
    memory = memory_of([1.0, 2.0, 3.0, 4.0, 5.0])
    grad = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0], dtype=dtype).split(lengths)
    pieces = [piece.clone() for piece in grad]
    Residual().accumulate(pieces, memory)
    assert memory.x.whole().tolist() == [11, 22, 33, 44, 55]
    assert all(torch.count_nonzero(piece) == 0 for piece in pieces)


@pytest.mark.parametrize("old", [2.0**16, 1.0, 2.0**-3])
@pytest.mark.parametrize("new", [2.0**17, 2.0**16, 2.0**-3])
def test_a_scale_that_moves_by_powers_of_two_loses_nothing(old, new):
    generator = torch.Generator().manual_seed(3)
    true = torch.randn(1000, generator=generator)
    grad = torch.randint(-9, 9, (1000,), generator=generator) * new
    memory = memory_of((true * old).tolist(), old)
    before = grad.clone()
    Residual().accumulate([grad], memory, scale=new)
    assert torch.equal(memory.x.whole(), true * new + before)
    assert memory.scale == new


def test_settling_changes_nothing():
    memory = memory_of([1.0, -2.0], scale=4.0)
    for total in (torch.ones(2), SparseVector.of({1: 3.0}, 2)):
        Residual().settle(total, memory)
    assert memory.x.whole().tolist() == [1.0, -2.0]
    assert memory.scale == 4.0
