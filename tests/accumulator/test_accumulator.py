"""Accumulator: pieces, blocks, difficult vectors, and when it prepares candidates."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accumulator.twin import SIZE, WAYS, Twin, assert_same, counting
from tests.kernels.kernel_inputs import (
    VECTORS,
    same_bits,
    vector,
    ways_to_cut,
)
from thinwire.accumulator import Accumulator
from thinwire.kernels import (
    Block,
    by_reference,
    contiguous_blocks,
    interleaved_blocks,
)
from thinwire.kernels.cpu import (
    passes,
)

EDGES = [0, 0, 1, 5, 63, 64, 200, 1000, 1001, 3333, 5002, 5003]


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("order", ["forwards", "backwards", "twice", "partly"])
def test_a_gradient_in_pieces(cut, order, extractions):
    twin = Twin(ways_to_cut(5003)[cut]).warm()
    pieces = list(pairwise(EDGES))
    pieces = {
        "forwards": pieces,
        "backwards": pieces[::-1],
        "twice": pieces[:7] + pieces[:7] + pieces[7:],
        "partly": pieces[:7],
    }[order]
    for factor in (1.0, 0.01, 100.0):
        for low, high in pieces:
            twin.accumulate(factor * twin.drawn(high - low), offset=low, scale=0.5)
        twin.take()
        twin.check()
    assert not extractions


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_gradient_is_undone_to_the_bit(blocks, pieces):
    """Whether it was added, marked or extracted, and taken from since."""
    twin = Twin(blocks)
    for step in range(4):
        before = twin.y.whole().clone()
        twin.x.undoable = twin.y.undoable = step % 3 != 0
        for low, high in pairwise(torch.linspace(0, SIZE, pieces + 1).long().tolist()):
            twin.accumulate(1e9 * twin.drawn(high - low), offset=low, scale=0.5)
        twin.take()
        if twin.x.undoable:
            for each in (twin.x, twin.y):
                each.undo_()
                assert same_bits(each.whole(), before)
        else:
            with pytest.raises(ValueError, match="without being undoable"):
                twin.x.undo_()
        twin.check()


def test_something_is_taken_between_two_pieces(blocks):
    twin = Twin(blocks).warm()
    for numbers in (None, [0]):
        twin.accumulate(twin.drawn(9000))
        twin.take(numbers)
        twin.accumulate(twin.drawn(SIZE - 9000), offset=9000)
        twin.take()
        twin.check()


def test_something_is_added_between_two_pieces(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate(twin.drawn(9000))
    twin.add(0, values=torch.full((blocks[0].length // 50,), 50.0))
    twin.accumulate(twin.drawn(SIZE - 9000), offset=9000)
    twin.take()
    twin.check()


def test_an_empty_piece_after_the_whole(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.accumulate(torch.empty(0), offset=SIZE)
    twin.add(0, values=torch.full((blocks[0].length // 50,), 50.0))
    twin.take()
    twin.check()


def test_another_rounding_than_the_last(blocks, extractions):
    twin = Twin(blocks).warm()
    for rounding in (torch.float32, torch.float32, torch.bfloat16):
        twin.accumulate()
        twin.take(rounding=rounding)
        twin.check()
    assert len(extractions) == 3


def test_selecting_without_taking(blocks, extractions, markings):
    """The vector keeps what was selected, and the next gradient is marked."""
    twin = Twin(blocks).warm()
    for step in range(3):
        twin.accumulate()
        with by_reference():
            wanted = twin.y.select(twin.counts)
        assert_same(twin.x.select(twin.counts), wanted)
        twin.check()
        assert (len(extractions), len(markings)) == (1, step)


def test_dense_lists_are_marked(extractions, markings):
    twin = Twin()
    twin.counts = [SIZE // 10]
    twin.warm()
    twin.accumulate()
    twin.take()
    twin.check()
    assert (len(extractions), len(markings)) == (0, 1)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("cut", range(6))
def test_hard_vectors(name, cut):
    size = 5003
    twin = Twin(ways_to_cut(size)[cut]).warm()
    for factor in (1.0, 1.0, 0.0):
        twin.accumulate(factor * twin.drawn() + vector(name, size))
        twin.take()
        # A NaN may come out of a sum with another sign.
        x, y = twin.x.whole(), twin.y.whole()
        assert torch.equal(x.nan_to_num(7), y.nan_to_num(7))
        y.copy_(x)


def test_what_is_not_finite_stays_so(extractions):
    twin = Twin().warm()
    grad = twin.drawn()
    grad[5], grad[9000], grad[15_000] = float("inf"), float("nan"), 3.4e38
    before = twin.x.whole()[15_000] + grad[15_000]
    twin.x.accumulate_(grad)
    assert extractions
    ((indices, _),) = twin.x.take(twin.counts, rounding=torch.bfloat16)
    assert {5, 9000, 15_000} <= set(indices.tolist())
    x = twin.x.whole()
    assert x[[5, 9000]].isnan().all()
    assert x[15_000] == before - torch.finfo(torch.bfloat16).max


def test_an_index_outside_a_block():
    twin = Twin(WAYS["interleaved"]).warm()
    for _ in range(2):  # taken from, and extracted
        outside = torch.tensor([2, SIZE], dtype=torch.int32)
        with pytest.raises(IndexError, match="outside"):
            twin.x.add_(outside, torch.ones(2), 1)
        twin.x.accumulate_(twin.drawn())


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_small_vector(data):
    values = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values |= st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
    size = data.draw(st.integers(0, 200))
    count, chunk = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70))
    twin = Twin(interleaved_blocks(size, count, chunk), torch.float32)
    for _ in range(3):
        drawn = data.draw(st.lists(values, min_size=size, max_size=size))
        twin.accumulate(torch.tensor(drawn, dtype=torch.float32).view(-1) / 4)
        twin.counts = [data.draw(st.integers(0, b.length)) for b in twin.blocks]
        twin.take()
        twin.check()


def test_the_vector_as_a_whole_ends_marking_until_something_is_taken(
    extractions, markings
):
    x = Accumulator(SIZE)

    def accumulate():
        x.accumulate_(torch.randn(SIZE))

    def passes_made():
        return len(extractions) + len(markings)

    accumulate()
    x.take([9])
    accumulate()
    assert passes_made() == 1
    x.whole()  # nothing was taken: candidates were of no use
    for _ in range(3):
        accumulate()
        x.whole()
    assert passes_made() == 1
    x.take([9])
    x.whole()  # there are none to put back
    accumulate()
    assert passes_made() == 2


def test_a_vector_that_nothing_is_taken_from_is_only_added_to(extractions, markings):
    x = Accumulator(SIZE)
    for _ in range(3):
        x.accumulate_(torch.ones(SIZE), scale=2.0)
    assert x.whole().eq(7.0).all()
    assert not extractions
    assert not markings


def test_other_blocks():
    twin = Twin().warm()
    for name in ("contiguous", "interleaved", "whole", "whole"):
        twin.accumulate()
        twin.blocks = WAYS[name]
        twin.counts = [50] * len(twin.blocks)
        for each in (twin.x, twin.y):
            each.set_blocks(twin.blocks)
        twin.take()
        twin.check()


def test_a_block_that_was_not_taken_from_is_whole_all_the_same(blocks):
    for look in (
        lambda x: x.gather(torch.arange(50)),
        lambda x: x.subtract_(torch.arange(50), torch.ones(50)),
        lambda x: x.return_(torch.arange(50), torch.ones(50)),
        lambda x: x.clear_(torch.arange(50)),
        lambda x: x.zero_(),
    ):
        twin = Twin(blocks).warm()
        twin.accumulate()
        found, wanted = look(twin.x), look(twin.y)
        assert found is wanted is None or same_bits(found, wanted)
        twin.take()
        twin.check()
        twin.accumulate()
        twin.take()
        twin.check()


def test_some_blocks_or_all():
    x = Accumulator.of(vector("normal", 100))
    x.set_blocks(contiguous_blocks(100, 4))
    every = x.select([2] * 4)
    some = x.select([2, 2], [3, 1])
    assert_same(some, [every[3], every[1]])
    assert_same(x.take([2] * 4), every)


def test_what_cannot_be_done_is_refused():
    x = Accumulator(100)
    with pytest.raises(ValueError, match=r"bfloat16: torch\.float16"):
        x.take([2], rounding=torch.float16)
    with pytest.raises(ValueError, match=r"\[0, 0\]: name each of them once"):
        x.take([2, 2], [0, 0])
    with pytest.raises(ValueError, match="cannot select 101 of 100"):
        x.take([101])
    for blocks in ([(5, 10, 10, 10)], [(0, 4, 8, 50), (4, 4, 9, 50)]):
        with pytest.raises(ValueError, match="not contiguous or interleaved"):
            x.set_blocks(tuple(Block(*block) for block in blocks))
    for _ in range(2):  # with marks, too
        with pytest.raises(ValueError, match="98 to 101 are not in a vector of 100"):
            x.accumulate_(torch.ones(3), offset=98)
        with pytest.raises(ValueError, match="float64"):
            x.accumulate_(torch.ones(100).double())
        x.take([3])


@pytest.mark.parametrize("seed", range(3))
def test_steady_gradients_are_read_once(monkeypatch, seed):
    """In a steady state no block is marked twice, and few elements are candidates."""
    size, k = 200_000, 1000
    torch.manual_seed(seed)
    marked = counting(monkeypatch, passes, "mark")
    x = Accumulator(size)
    x.set_blocks(interleaved_blocks(size, 2, 4096))
    for step in range(40):
        x.accumulate_(torch.randn(size))
        for number, (indices, values) in enumerate(x.select([k, k])):
            x.subtract_(indices, values, number)
        if step == 0:
            assert len(marked) == 2
    assert len(marked) <= 4
