"""Layout: the offsets and strides of pieces in a flat vector."""

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.layout import Layout


@pytest.mark.parametrize(
    ("shapes", "offsets"),
    [
        ((), (0,)),
        (((3,),), (0, 3)),
        (((2, 3), (), (0, 7), (5,)), (0, 6, 7, 7, 12)),
        (((0,), (0,)), (0, 0, 0)),
    ],
)
def test_offsets_follow_from_the_shapes(shapes, offsets):
    layout = Layout(tuple(map(str, range(len(shapes)))), shapes)
    assert layout.offsets == offsets
    assert layout.size == offsets[-1]
    views = layout.views(torch.arange(layout.size))
    assert tuple(view.shape for view in views.values()) == shapes
    together = [element for view in views.values() for element in view.flatten()]
    assert together == list(range(layout.size))


def test_views_share_the_memory_of_the_vector():
    vector = torch.zeros(7)
    views = Layout(("w", "b"), ((2, 3), ())).views(vector)
    views["w"][1, 0] = 3.0
    views["b"].fill_(7.0)
    assert vector.tolist() == [0, 0, 0, 3, 0, 0, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layout_takes_names_and_shapes_from_tensors(dtype):
    named = [("w", torch.zeros(2, 3, dtype=dtype)), ("b", torch.zeros(3))]
    assert Layout.of(iter(named)) == Layout(("w", "b"), ((2, 3), (3,)))


def test_views_lie_as_their_tensors_do():
    pictures = torch.arange(24.0).view(1, 2, 3, 4)
    pictures = pictures.to(memory_format=torch.channels_last)
    gaps = torch.zeros(4, 6)[:, ::2]
    layout = Layout.of([("rows", torch.zeros(3)), ("p", pictures), ("gaps", gaps)])
    memory = pictures.permute(0, 2, 3, 1).reshape(-1)
    vector = torch.cat([torch.zeros(3), memory, torch.zeros(12)])
    views = layout.views(vector)
    assert torch.equal(views["p"], pictures)
    assert views["p"].stride() == pictures.stride()
    assert views["gaps"].is_contiguous()  # it does not fill its memory
    assert torch.equal(layout.pick(["p"]).views(memory)["p"], pictures)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64]
)
def test_what_float32_cannot_hold_is_refused_by_name(dtype):
    named = [("fine", torch.zeros(1)), ("odd.one", torch.zeros(1, dtype=dtype))]
    with pytest.raises(ConfigError, match=f"'odd.one' is {dtype}.*freeze it"):
        Layout.of(named)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_flat_layout_is_one_piece(size):
    layout = Layout.flat(size)
    assert layout.size == size
    assert [len(view) for view in layout.views(torch.zeros(size)).values()] == [size]


def test_equal_layouts_are_interchangeable():
    assert Layout.flat(3) == Layout(("",), ((3,),))
    assert hash(Layout.flat(3)) == hash(Layout(("",), ((3,),)))
    assert Layout.flat(3) != Layout(("",), ((3, 1),))
