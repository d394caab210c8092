"""Ranks that meet in one process, at a store in its memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from thinwire.tools.doctor.meeting import Meeting, UnreachableError

LONG = 1000.0  # seconds: longer than pytest lets a test take


@pytest.fixture
def ranks():
    store = HashStore()
    return [Meeting(rank, 2, LONG, store) for rank in range(2)]


def test_everyone_gets_every_value(ranks):
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda rank: rank.gather("age", rank.rank + 40), ranks))
    assert told == [{0: 40, 1: 41}] * 2


def test_a_rank_that_was_late_once_is_not_waited_for_again(ranks):
    first, _ = ranks
    assert first.gather("name", "a", patience=0.05) == {0: "a"}
    assert first.late == {1}
    assert first.gather("age", 3, patience=LONG) == {0: 3}


def test_nobody_leaves_before_the_others_are_done_and_rank_0_leaves_last(
    ranks, monkeypatch
):
    monkeypatch.setattr("thinwire.tools.doctor.meeting._LAST_WORDS", LONG)
    first, second = ranks
    with ThreadPoolExecutor(2) as pool:
        leaving = pool.submit(second.leave)
        with pytest.raises(TimeoutError):
            leaving.result(0.2)
        pool.submit(first.leave).result()
        leaving.result()
    assert first.store.check(["gone/1"])


def test_a_store_that_fails_is_named():
    def fail(*_):
        raise RuntimeError("Connection reset by peer\nand pages of its stack")

    class Broken:
        set = fail

    broken = Meeting(1, 2, LONG, Broken())
    with pytest.raises(UnreachableError, match=r"gone: Connection reset by peer$"):
        broken.gather("age")
