import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import SIZES, VECTORS, same_bits, vector, ways_to_cut
from thinwire import kernels
from thinwire.kernels import Marker
from thinwire.kernels.reference.dense import magnitude_bits
from thinwire.kernels.reference.elements import positions

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def marks_of(marker, number):
    """The marks of a block as booleans, read without any kernel."""
    words = marker.bitmap[marker.offsets[number] : marker.offsets[number + 1]]
    bits = (words[:, None] >> torch.arange(64)) & 1
    return bits.flatten()[: marker.blocks[number].length].bool()


def assert_marked(marker, x):
    for number, block in enumerate(marker.blocks):
        assert marker.valid[number]
        every = torch.arange(block.length)
        bits = magnitude_bits(x[positions(every, block)])
        hint = int(marker.hint_bits[number])
        assert torch.equal(marks_of(marker, number), bits >= hint)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.3, 2.0**-16])
def test_the_reference_agrees(dtype, size, scale):
    for name in VECTORS:
        x, grad = vector("octaves", size), vector(name, size).to(dtype)
        y, again = x.clone(), grad.clone()
        cpu.accumulate_(x, grad, offset=0, scale=scale, marker=None)
        reference.accumulate_(y, again, offset=0, scale=scale, marker=None)
        # Which NaN comes out of a sum of two is the processor's own business.
        assert same_bits(x.nan_to_num(7), y.nan_to_num(7))
        assert torch.equal(x.isnan(), y.isnan())
        assert same_bits(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_marks_are_the_elements_that_reach_the_hint(dtype, size):
    for blocks in ways_to_cut(size):
        x = vector("normal", size)
        marker = Marker(blocks)
        marker.bitmap.fill_(-1)
        marker.hints[:] = torch.linspace(0.5, 2, len(blocks))
        grad = vector("laplace", size).to(dtype)
        wanted = x * 0.5 + grad
        cpu.accumulate_(x, grad, offset=0, scale=0.5, marker=marker)
        assert same_bits(x, wanted)
        assert_marked(marker, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", range(6))
def test_pieces_at_odd_offsets_make_up_the_same_marks(cut, dtype):
    size = 5003
    edges = [0, 0, 1, 5, 63, 64, 200, 1000, 1001, 3333, 5002, size]
    for backwards in (False, True):
        x, marker = torch.zeros(size), Marker(ways_to_cut(size)[cut])
        for hint in (1.0, 0.25):
            marker.hints.fill(hint)
            marker.bitmap.bitwise_not_()
            grad = vector("normal", size).to(dtype)
            wanted = x + grad
            pieces = list(itertools.pairwise(edges))
            for low, high in reversed(pieces) if backwards else pieces:
                cpu.accumulate_(x, grad[low:high], offset=low, scale=1.0, marker=marker)
            assert same_bits(x, wanted)
            assert_marked(marker, x)


def test_marks_count_when_the_whole_block_was_covered():
    marker = Marker(kernels.contiguous_blocks(100, 2))
    marker.hints.fill(1.0)
    x = torch.zeros(100)

    def cover(low, high):
        grad = torch.ones(high - low)
        cpu.accumulate_(x, grad, offset=low, scale=1.0, marker=marker)
        return marker.valid

    assert cover(0, 40) == [False, False]
    assert cover(40, 70) == [True, False]
    assert cover(70, 100) == [True, True]
    # A second accumulation has begun: marks of the first describe an older vector.
    assert cover(60, 100) == [False, False]
    assert cover(50, 60) == [False, True]
    assert cover(0, 50) == [True, True]
    marker.forget()
    assert cover(0, 50) == [True, False]


def test_twice_the_same_piece_is_not_the_whole():
    marker = Marker(kernels.contiguous_blocks(100, 1))
    marker.hints.fill(1.0)
    x = torch.zeros(100)
    for _ in range(2):
        cpu.accumulate_(x, torch.ones(50), offset=0, scale=1.0, marker=marker)
    assert marker.valid == [False]


def test_blocks_that_are_not_the_vector_are_left_unmarked():
    for blocks in ([(5, 10, 10, 10)], [(0, 4, 8, 8), (4, 4, 9, 8)]):
        marker = Marker(tuple(kernels.Block(*block) for block in blocks))
        marker.hints.fill(1.0)
        x = torch.zeros(30)
        cpu.accumulate_(x, torch.ones(30), offset=0, scale=1.0, marker=marker)
        assert not any(marker.valid)
        assert torch.equal(x, torch.ones(30))


def test_a_strided_gradient_is_consumed_too():
    wide = torch.randn(400_000)
    x, grad, wanted = torch.zeros(200_000), wide[::2], wide[::2].clone()
    cpu.accumulate_(x, grad, offset=0, scale=1.0, marker=None)
    assert torch.equal(x, wanted)
    assert not grad.any()
    assert wide[1::2].all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="3 to 6 are not in a vector of 5"):
        cpu.accumulate_(torch.zeros(5), torch.ones(3), offset=3, scale=1.0, marker=None)
    with pytest.raises(ValueError, match="float64"):
        cpu.accumulate_(
            torch.zeros(5), torch.ones(5).double(), offset=0, scale=1.0, marker=None
        )
    with pytest.raises(ValueError, match="contiguous"):
        cpu.accumulate_(
            torch.zeros(10)[::2], torch.ones(5), offset=0, scale=1.0, marker=None
        )


class Temporaries(TorchDispatchMode):
    """How many elements the largest new tensor has."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.data_ptr() for tensor in known}
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.data_ptr() not in self.known:
            inside = any(
                isinstance(arg, torch.Tensor)
                and result.untyped_storage().data_ptr()
                == arg.untyped_storage().data_ptr()
                for arg in args
            )
            self.largest = max(self.largest, 0 if inside else result.numel())
        return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_copy_of_the_gradient(dtype):
    size = 300_000
    x, grad = vector("octaves", size), vector("normal", size).to(dtype)
    marker = Marker(kernels.interleaved_blocks(size, 4, 1024))
    y = x + grad.float()
    with Temporaries(x, grad) as temporaries:
        kernels.accumulate_(x, grad, marker=marker)
    assert torch.equal(x, y)
    assert not grad.any()
    assert temporaries.largest < size // 4


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_two_places_at_once_are_all_places(cut, pieces):
    size = 5000
    blocks = ways_to_cut(size)[cut]
    x, grad = vector("octaves", size), vector("normal", size)
    y, marker = x + grad, Marker(blocks)
    marker.hints[:] = 1.0
    for low in range(0, size, -(-size // pieces)):
        piece = grad[low : low + -(-size // pieces)]
        kernels.accumulate_(x, piece, offset=low, marker=marker)
    assert torch.equal(x, y)
    assert not grad.any()
    if marker.describes(size):
        assert_marked(marker, x)
