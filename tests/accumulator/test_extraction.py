"""Candidates of an accumulator change no result, whatever is called on it."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pickle import dumps, loads

import pytest
import torch

from tests.accumulator.twin import SIZE, WAYS, Twin, counting
from tests.kernels.kernel_inputs import (
    same_bits,
    some_indices,
)
from thinwire.kernels import (
    by_reference,
)
from thinwire.kernels.cpu import (
    accumulate,
    extracted,
    extraction,
    threads,
)


@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=str)
def test_steps_with_additions(blocks, rounding, extractions):
    twin = Twin(blocks, rounding).warm()
    for step in range(4):
        twin.accumulate()
        assert len(extractions) == step + 1
        for number in range(1, len(blocks)):
            for _ in range(number):  # to the last block twice
                twin.add(number)
        twin.take()
        twin.check()


def test_what_is_left_may_be_added_to_and_taken_from(blocks):
    """All that a collective does to a block after it was taken from."""
    twin = Twin(blocks).warm()
    for _ in range(2):
        twin.accumulate()
        twin.take()
        for number in range(len(blocks)):
            indices = some_indices(blocks[number].length, 40)
            values, sent = twin.drawn(40), twin.drawn(40)
            held = twin.x.gather(indices, number)
            assert same_bits(held, twin.y.gather(indices, number))
            for each in (twin.x, twin.y):
                each.subtract_(indices, values, number)
                held = each.gather(indices, number)
                each.subtract_(indices, sent, number, held=held)
                each.return_(indices, values, number, sent=sent, holders=(2, 1))
                each.clear_(indices[:3], number)
        twin.take()
        twin.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strided", [False, True])
def test_other_gradients(monkeypatch, blocks, dtype, strided, extractions, markings):
    """What has to be converted in pieces is marked, not extracted."""
    monkeypatch.setattr(accumulate, "_PIECE", 5000)
    twin = Twin(blocks).warm()
    for _ in range(2):
        grad = twin.drawn(2 * SIZE).to(dtype)
        twin.accumulate(grad[::2] if strided else grad[:SIZE])
        twin.take()
        twin.check()
    plain = dtype == torch.bfloat16 and not strided
    assert len(extractions) == (2 if plain else 0)
    assert len(markings) == (0 if plain else 10)


def test_threads_extract_alike(monkeypatch, blocks, extractions):
    monkeypatch.setattr(threads, "SHARE", 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    twin = Twin(blocks).warm()
    for step in range(3):
        twin.accumulate()
        assert len(extractions) == 3 * (step + 1)
        twin.add(0)
        twin.take()
        twin.check()


@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=str)
def test_threads_share_the_lists_of_one_block(monkeypatch, rounding):
    """Also where most of what is taken, or the last of it, is equal."""
    monkeypatch.setattr(threads, "SHARE", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    calls = counting(monkeypatch, extracted, "take_extracted")
    twin = Twin(rounding=rounding)
    for step in range(7):
        twin.accumulate((3 * twin.drawn()).round())
        k, y = twin.counts[0], deepcopy(twin.y).whole().abs()
        kth = y.sort(descending=True).values[k - 1]
        assert (y == kth).sum() + (y > kth).sum() > k  # some of the equal ones are left
        if step == 4:
            twin.add(0)  # which makes one list of all
        del calls[:]
        twin.take()
        assert len(calls) == {0: 0, 4: 1}.get(step, 3)
        twin.check()


def test_the_number_of_threads_may_change_before_taking(monkeypatch, blocks):
    monkeypatch.setattr(threads, "SHARE", 1000)
    count = [3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    twin = Twin(blocks).warm()
    for before, after in ((3, 1), (1, 3), (2, 5)):
        count[0] = before
        twin.accumulate()
        count[0] = after
        twin.take()
        twin.check()


def test_accumulators_in_many_threads_at_once():
    def rank(number):
        twin = Twin(WAYS["interleaved"])
        twin.draws.manual_seed(number)
        for _ in range(5):
            twin.accumulate()
            twin.add(1)
            twin.take()
            twin.check()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(rank, range(16))) == [None] * 16


@pytest.mark.parametrize("copied", [deepcopy, lambda twin: loads(dumps(twin))])
def test_a_copy_goes_on_by_itself(blocks, copied):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.add(0)
    other = copied(twin)
    for each in (twin, other):
        for accumulator in (each.x, each.y):
            accumulator.set_blocks(blocks)
        for _ in range(2):
            each.take()
            each.check()
            each.accumulate()


def test_what_is_asked_for_may_change(monkeypatch, blocks, extractions):
    """Memory is allocated anew seldom."""
    made, make = [], extraction.Extraction.make
    monkeypatch.setattr(
        extraction.Extraction, "make", lambda *a: made.append(1) or make(*a)
    )
    twin = Twin(blocks).warm()
    for step in range(20):
        twin.accumulate()
        twin.counts = [block.length // 100 + step % 3 for block in blocks]
        twin.take()
        twin.check()
    assert (len(extractions), len(made)) == (20, 1)
    for k in (5, 0, 50):
        twin.counts = [k] * len(blocks)
        for _ in range(2):
            twin.accumulate()
            twin.take()
            twin.check()


@pytest.mark.parametrize("factor", [0.001, 0.3, 2.5, 30.0, 2.0**60])
@pytest.mark.parametrize("space", [0, 4096])
def test_a_gradient_of_another_size(monkeypatch, blocks, factor, space):
    """Too few candidates, an octave more than expected, or more than there is space."""
    monkeypatch.setattr(extraction, "_MORE", space)
    twin = Twin(blocks).warm()
    for scale in (factor, 1.0):
        twin.accumulate(factor * twin.drawn() - twin.y.whole(), scale=scale)
        twin.take()
        twin.check()


def test_additions_may_cancel_what_was_extracted(blocks, extractions):
    twin = Twin(blocks).warm()
    twin.accumulate()
    copy = deepcopy(twin.y)
    copy.set_blocks(blocks)
    with by_reference():
        largest = copy.select([3 * k for k in twin.counts])
    for number, (indices, values) in enumerate(largest):
        twin.add(number, indices, -values)
    twin.take()
    assert extractions
    twin.check()


def test_some_blocks_are_taken_and_the_others_restored(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.add(0)
    twin.take(range(1, len(blocks)))
    twin.check()


def test_a_second_gradient_before_anything_is_taken(blocks):
    twin = Twin(blocks).warm()
    twin.accumulate()
    twin.accumulate()
    twin.take()
    twin.check()
