"""Lending on a processor: what leaves the vector early is what would leave it later."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pickle import dumps, loads

import pytest
import torch

from tests.backends import cpu
from tests.kernels.kernel_inputs import same_bits, some_indices
from thinwire import kernels
from thinwire.kernels import (
    Block,
    Marker,
    contiguous_blocks,
    interleaved_blocks,
)
from thinwire.kernels.cpu import lent
from thinwire.kernels.cpu.loans import Loans, _Lists

SIZE = 20_011
WAYS = {
    "whole": (Block.whole(SIZE),),
    "dealt": interleaved_blocks(SIZE, 3, 64),
    "dealt oddly": interleaved_blocks(SIZE, 3, 100),
    "in a row": contiguous_blocks(SIZE, 3),
}


class Twin:
    """One vector that is lent from, and one that is worked on by the reference."""

    def __init__(self, blocks, rounding=torch.bfloat16):
        self.marker = Marker(blocks, lending=True)
        self.rounding = rounding
        self.x, self.y = torch.zeros(SIZE), torch.zeros(SIZE)
        self.draws = torch.Generator().manual_seed(0)
        self.counts = [block.length // 100 for block in blocks]

    def accumulate(self, grad=None):
        if grad is None:
            grad = torch.randn(SIZE, generator=self.draws)
        self.y += grad.float()
        kernels.accumulate_(self.x, grad, marker=self.marker)
        assert not grad.any()

    def take(self, numbers=None):
        numbers = range(len(self.counts)) if numbers is None else numbers
        counts = [self.counts[b] for b in numbers]
        given = {"marker": self.marker, "numbers": numbers, "rounding": self.rounding}
        lists = kernels.take_each(self.x, counts, **given)
        plain = Marker(self.marker.blocks)
        with kernels.by_reference():
            wanted = kernels.take_each(self.y, counts, **{**given, "marker": plain})
        for found, right in zip(lists, wanted, strict=True):
            assert same_bits(found[0], right[0])
            assert same_bits(found[1], right[1])

    def add(self, number, scale=1.0):
        length = self.marker.blocks[number].length
        indices = some_indices(length, length // 50)
        values = scale * torch.randn(len(indices), generator=self.draws)
        kernels.add_at_(self.x, indices, values, marker=self.marker, number=number)
        block = self.marker.blocks[number]
        kernels.add_at_(self.y, indices, values, block=block)

    def lent(self):
        return sorted(self.marker.scratch.loans)

    def warm(self):
        self.accumulate()
        self.take()
        assert isinstance(self.marker.scratch, Loans)
        return self

    def check(self):
        assert not self.lent()
        assert same_bits(self.x, self.y)


@pytest.fixture(params=list(WAYS))
def blocks(request):
    return WAYS[request.param]


@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=str)
def test_steps_with_additions_are_the_references(blocks, rounding):
    twin = Twin(blocks, rounding).warm()
    for _ in range(4):
        twin.accumulate()
        assert twin.lent() == list(range(len(blocks)))
        assert not same_bits(twin.x, twin.y)
        for number in range(1, len(blocks)):
            for _ in range(number):  # of the last block what was added twice
                twin.add(number)
        twin.take()
        twin.check()


def test_gradients_in_bfloat16(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate(torch.randn(SIZE, generator=twin.draws).bfloat16())
    assert twin.lent()
    twin.take()
    twin.check()


def test_threads_lend_alike(monkeypatch, blocks):
    monkeypatch.setattr("thinwire.kernels.cpu.threads.SHARE", 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    twin = Twin(blocks).warm()
    for _ in range(3):
        twin.accumulate()
        assert len(twin.marker.scratch._lists.rows) == 3
        twin.add(0)
        twin.take()
        twin.check()


@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=str)
def test_threads_share_what_they_lent_of_one_block(monkeypatch, rounding):
    """Also where most of what is chosen, or the last of it, is equal."""
    monkeypatch.setattr("thinwire.kernels.cpu.threads.SHARE", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    calls = []
    take_lent = lent.take_lent

    def counted(*given):
        calls.append(given)
        take_lent(*given)

    monkeypatch.setattr(lent, "take_lent", counted)
    twin = Twin(WAYS["whole"], rounding)

    def whole_numbers():
        twin.accumulate((3 * torch.randn(SIZE, generator=twin.draws)).round())

    whole_numbers()
    twin.take()
    for step in range(6):
        whole_numbers()
        kth = twin.y.abs().sort(descending=True).values[twin.counts[0] - 1]
        equal, above = (twin.y.abs() == kth).sum(), (twin.y.abs() > kth).sum()
        assert above + equal > twin.counts[0]  # some are left, and not all alike
        del calls[:]
        if step == 4:
            twin.add(0)  # which makes one list of all
        twin.take()
        assert len(calls) == (1 if step == 4 else 3)
        twin.check()


@pytest.mark.parametrize("factor", [-1.0, 0.5, 1.2])
def test_a_hint_that_changes_meanwhile(blocks, factor):
    twin = Twin(blocks).warm()
    twin.accumulate()
    assert twin.lent()
    twin.marker.hints *= factor
    twin.add(0)
    twin.take()
    twin.check()


def test_without_a_hint_nothing_is_lent(blocks):
    twin = Twin(blocks).warm()
    twin.marker.hints.fill(-1.0)
    twin.accumulate()
    assert not twin.lent()
    twin.take()
    twin.check()


@pytest.mark.parametrize("copied", [deepcopy, lambda twin: loads(dumps(twin))])
def test_a_copy_goes_on_by_itself(blocks, copied):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.add(0)
    other = copied(twin)
    for each in (twin, other):
        each.take()
        each.check()
        each.accumulate()
        assert each.lent()
        each.take()
        each.check()


def test_what_is_asked_for_may_change(monkeypatch, blocks):
    """Room is made anew seldom."""
    made = []
    make = _Lists.make
    monkeypatch.setattr(_Lists, "make", lambda *given: made.append(1) or make(*given))
    twin = Twin(blocks).warm()
    for step in range(20):
        twin.accumulate()
        assert twin.lent()
        twin.counts = [block.length // 100 + step % 3 for block in blocks]
        twin.take()
        twin.check()
    assert len(made) == 1
    for k in (5, 50):
        twin.counts = [k] * len(blocks)
        for _ in range(2):
            twin.accumulate()
            twin.take()
            twin.check()


def test_threads_may_be_more_or_fewer_when_taking(monkeypatch, blocks):
    monkeypatch.setattr("thinwire.kernels.cpu.threads.SHARE", 1000)
    threads = [3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    twin = Twin(blocks).warm()
    for before, after in ((3, 1), (1, 3), (2, 5)):
        threads[0] = before
        twin.accumulate()
        assert twin.lent()
        threads[0] = after
        twin.take()
        twin.check()


def test_another_vector(blocks):
    twin = Twin(blocks).warm()
    for _ in range(2):
        twin.accumulate()
        twin.take()
        twin.check()
        twin.x = twin.x.clone()


@pytest.mark.parametrize("kind", ["float16", "strided"])
def test_gradients_that_are_converted_are_marked_instead(blocks, kind):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.take()
    grad = torch.randn(2 * SIZE, generator=twin.draws)
    twin.accumulate(grad[::2] if kind == "strided" else grad[:SIZE].half())
    assert not twin.lent()
    twin.take()
    twin.check()


def test_callers_at_once():
    def rank(number):
        twin = Twin(WAYS["dealt"])
        twin.draws.manual_seed(number)
        for _ in range(5):
            twin.accumulate()
            twin.add(1)
            twin.take()
            twin.check()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(rank, range(16))) == [None] * 16


def test_a_hint_more_than_an_octave_too_low(blocks):
    """The k-th magnitude is beyond the bins that are counted while lending."""
    twin = Twin(blocks).warm()
    twin.marker.hints *= 0.45
    twin.accumulate()
    assert twin.lent()
    twin.take()
    twin.check()


def test_more_candidates_than_room(monkeypatch, blocks):
    """A gradient a thousand times as large: they all come back, and all is well."""
    monkeypatch.setattr("thinwire.kernels.cpu.loans._MORE", 0)
    twin = Twin(blocks).warm()
    twin.accumulate(1000 * torch.randn(SIZE, generator=twin.draws))
    assert not twin.lent()
    twin.take()
    twin.check()


def test_too_few_candidates(blocks):
    """The residual has shrunk: nobody reaches the hint."""
    twin = Twin(blocks).warm()
    shrunk = -twin.y * (1 - 2**-10)
    twin.accumulate(shrunk)
    assert twin.lent()
    twin.take()
    twin.check()


def test_additions_may_sink_candidates_below_the_hint(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    for number in twin.lent():
        loan = twin.marker.scratch.loans[number]
        where, held = map(torch.tensor, loan.entries())
        block = blocks[number]
        kernels.add_at_(twin.x, where, -held, marker=twin.marker, number=number)
        kernels.add_at_(twin.y, where, -held, block=block)
    twin.take()
    twin.check()


def test_some_blocks_are_taken_and_the_others_reclaimed(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.add(0)
    twin.take(range(1, len(blocks)))
    assert twin.lent() == [0]
    kernels.reclaim_(twin.x, twin.marker)
    twin.check()


def test_a_second_gradient_before_anything_is_taken(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.accumulate()
    twin.take()
    twin.check()


def test_a_gradient_in_pieces_is_marked_instead(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    grad = torch.randn(SIZE, generator=twin.draws)
    twin.y += grad
    for offset, piece in ((0, grad[:7000]), (7000, grad[7000:])):
        kernels.accumulate_(twin.x, piece, offset=offset, marker=twin.marker)
        assert not twin.lent()
    twin.take()
    twin.check()


def test_an_empty_piece_after_the_whole(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    kernels.accumulate_(twin.x, torch.empty(0), offset=SIZE, marker=twin.marker)
    twin.add(0, scale=1000.0)  # what marks of an earlier step do not know
    twin.take()
    twin.check()


def test_another_rounding_than_the_last(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.rounding = torch.float32
    twin.take()
    twin.check()
    twin.accumulate()
    assert twin.lent()
    twin.take()
    twin.check()


def test_selecting_without_taking(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    found = kernels.select_each(twin.x, twin.counts, marker=twin.marker)
    with kernels.by_reference():
        wanted = kernels.select_each(twin.y, twin.counts, marker=Marker(blocks))
    for one, other in zip(found, wanted, strict=True):
        assert same_bits(one[1], other[1])
    twin.check()


def test_dense_lists_are_not_lent():
    twin = Twin(WAYS["whole"])
    twin.counts = [SIZE // 10]
    twin.warm()
    twin.accumulate()
    assert not twin.lent()
    twin.take()
    twin.check()


def test_what_is_not_finite_stays_so():
    twin = Twin(WAYS["whole"]).warm()
    grad = torch.randn(SIZE, generator=twin.draws)
    grad[5], grad[9000], grad[15_000] = float("inf"), float("nan"), 3.4e38
    twin.y += grad
    kernels.accumulate_(twin.x, grad, marker=twin.marker)
    assert twin.lent()
    (found,) = kernels.take_each(
        twin.x, twin.counts, marker=twin.marker, rounding=torch.bfloat16
    )
    assert {5, 9000, 15_000} <= set(found[0].tolist())
    assert twin.x[[5, 9000]].isnan().all()
    assert twin.x[15_000] == twin.y[15_000] - torch.finfo(torch.bfloat16).max


def test_an_index_outside_a_lent_block():
    twin = Twin(WAYS["dealt"]).warm()
    twin.accumulate()
    outside = torch.tensor([2, SIZE], dtype=torch.int32)
    with pytest.raises(IndexError, match="outside"):
        cpu.add_at_(
            twin.x,
            outside,
            torch.ones(2),
            block=twin.marker.blocks[1],
            marker=twin.marker,
            number=1,
        )
