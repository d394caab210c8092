"""Forget: nothing is kept between gradients."""

import pytest
import torch

from thinwire.feedback import Forget
from thinwire.layout import Layout

CPU = torch.device("cpu")


def test_there_is_nothing_to_save():
    assert Forget().init(Layout.flat(3), CPU).saved == {}


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_what_was_left_is_overwritten(scale):
    memory = Forget().init(Layout.flat(3), CPU)
    memory.x.whole().copy_(torch.tensor([5.0, -6.0, 7.0]))
    pieces = [torch.tensor([1.0]), torch.tensor([0.0, 3.0])]
    Forget().accumulate(pieces, memory, scale=scale)
    assert memory.x.whole().tolist() == [1, 0, 3]
    assert memory.scale == scale
    assert all(torch.count_nonzero(piece) == 0 for piece in pieces)


@pytest.mark.parametrize("left", [float("inf"), float("nan")])
def test_what_was_not_finite_is_overwritten_too(left):
    memory = Forget().init(Layout.flat(2), CPU)
    memory.x.whole()[0] = left
    Forget().accumulate([torch.tensor([1.0, 2.0])], memory)
    assert memory.x.whole().tolist() == [1, 2]
