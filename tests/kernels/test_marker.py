import pytest
import torch

from tests.backends import reference
from tests.kernels.kernel_inputs import same_bits, ways_to_cut
from thinwire import kernels
from thinwire.kernels import Block, Marker
from thinwire.kernels.reference.elements import positions


@pytest.mark.parametrize("cut", range(6))
def test_no_word_has_elements_on_both_sides_of_a_boundary(cut):
    size = 1500
    marker = Marker(ways_to_cut(size)[cut])
    word_of = torch.empty(size, dtype=torch.int64)
    for number, block in enumerate(marker.blocks):
        local = torch.arange(block.length)
        word_of[positions(local, block)] = marker.offsets[number] + local // 64
    for position in range(size):
        boundary = marker.word_boundary(position)
        assert boundary <= position
        before, after = word_of[:boundary], word_of[boundary:]
        assert not set(before.tolist()) & set(after.tolist())


def test_a_selection_between_two_pieces_voids_the_marks():
    marker = Marker((Block.whole(100),))
    marker.hints.fill(0.5)
    x = torch.zeros(100)
    kernels.accumulate_(x, torch.ones(60), marker=marker)
    kernels.select(x, 5, marker=marker)
    kernels.accumulate_(x, torch.ones(40), offset=60, marker=marker)
    assert marker.valid == [False]


def test_marks_are_used_with_the_hint_they_were_made_with():
    """Two large ones are marked, three small ones received, 95 are in between."""
    marker = Marker((Block.whole(100),))
    marker.hints.fill(3.0)
    x, grad = torch.zeros(100), torch.full((100,), 2.0)
    grad[:2], grad[2:5] = 4.0, 0.0
    kernels.accumulate_(x, grad, marker=marker)
    received = torch.arange(2, 5, dtype=torch.int32)
    kernels.add_at_(x, received, torch.ones(3), marker=marker)
    marker.hints.fill(0.5)
    found = kernels.select(x, 5, marker=marker)
    wanted = reference.select(x, 5, block=Block.whole(100), marker=None, number=0)
    assert same_bits(found[0], wanted[0])
    assert found[0].tolist() == [0, 1, 5, 6, 7]


def test_empty_pieces_leave_no_trace():
    marker = Marker((Block.whole(10),))
    for _ in range(3):
        kernels.accumulate_(torch.zeros(10), torch.zeros(0), offset=4, marker=marker)
    assert not marker._pieces
