import os
import threading
import time
from functools import partial

import pytest
import torch

from tests.backends import cpu
from tests.kernels.kernel_inputs import same_bits, vector, ways_to_cut
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.kernels.cpu import candidates
from thinwire.kernels.cpu import threads as pool


@pytest.fixture
def small_shares(monkeypatch):
    monkeypatch.setattr(pool, "SHARE", 1000)


@pytest.mark.usefixtures("small_shares")
@pytest.mark.parametrize("cut", range(6))
def test_the_number_of_threads_changes_no_bit(cut):
    size = 20_011
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        x = Accumulator.of(vector("laplace", size))
        x.set_blocks(ways_to_cut(size)[cut])
        taken = x.take([100] * len(x.blocks))
        for low, high in ((0, 3001), (3001, size)):
            grad = vector("normal", size)[low:high]
            x.accumulate_(grad, offset=low, scale=0.5)
            assert not grad.any()
        taken += x.take([100] * len(x.blocks))
        x.accumulate_(vector("laplace", size))
        results.append([x.whole(), *(part for sparse in taken for part in sparse)])
    for result in results[1:]:
        assert all(map(same_bits, result, results[0]))


@pytest.mark.usefixtures("small_shares")
def test_parts_make_up_the_whole_and_run_in_threads():
    torch.set_num_threads(4)
    parts = []
    pool.share_out(
        lambda low, high: parts.append((low, high)),
        7,
        8000,
        boundary=lambda p: p - p % 64,
    )
    parts.sort()
    assert len(parts) == 4
    assert [low for low, _ in parts[1:]] == [high for _, high in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (7, 8000)
    assert all(low % 64 == 0 for low, _ in parts[1:])


@pytest.mark.usefixtures("small_shares")
def test_an_error_in_a_part_is_raised():
    torch.set_num_threads(2)

    def run(low, high):
        if low > 0:
            raise ArithmeticError("in the second part")

    with pytest.raises(ArithmeticError):
        pool.share_out(run, 0, 8000, boundary=lambda p: p)


def test_others_are_done_when_an_error_is_raised():
    """They write to memory that is the caller's again then."""
    begun, done = threading.Event(), []

    caller = threading.current_thread()

    def call():
        if threading.current_thread() is caller:
            assert begun.wait(10)
            raise ArithmeticError
        begun.set()
        time.sleep(0.2)
        done.append(True)

    with pytest.raises(ArithmeticError):
        pool.make([call, call], 2)
    assert done == [True]


def test_busy_threads_are_not_waited_for():
    """All threads of the pool are busy for others."""
    count = 1 + os.cpu_count()
    all_busy, free, freed = threading.Barrier(1 + count), threading.Event(), []

    def call():
        all_busy.wait(10)
        freed.append(free.wait(10))

    busy = threading.Thread(target=pool.make, args=([call] * count, count))
    busy.start()
    all_busy.wait(10)
    made = []
    pool.make([partial(made.append, i) for i in range(3)], 2)
    free.set()
    busy.join()
    assert made == [0, 1, 2]
    assert freed == [True] * count  # before their patience was at an end


@pytest.mark.usefixtures("small_shares")
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_does_not_change_what_is_taken(monkeypatch, rounding):
    size, results, helped = 20_011, [], []

    def make(calls, threads):
        helped.append(threads)
        pool.make(calls, threads)

    monkeypatch.setattr(candidates, "make", make)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        x, taken = Accumulator(size), []
        x.set_blocks(kernels.interleaved_blocks(size, 5, 64))
        for step in range(4):
            torch.manual_seed(step)
            x.accumulate_(torch.randn(size))
            taken += x.take([100, 20, 50], [4, 0, 2], rounding)
            taken += x.take([5, 30], [1, 3], rounding)
        results.append([x.whole(), *(part for sparse in taken for part in sparse)])
    assert set(helped) == {1, 3}
    for one, other in zip(*results, strict=True):
        assert same_bits(one, other)


@pytest.mark.usefixtures("small_shares")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_new_threads():
    torch.set_num_threads(2)
    x = torch.zeros(20_000)
    cpu.accumulate_(x, torch.ones(20_000), offset=0, scale=1.0)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        cpu.accumulate_(x, torch.ones(20_000), offset=0, scale=1.0)
        os._exit(0 if torch.equal(x, torch.full((20_000,), 2.0)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
