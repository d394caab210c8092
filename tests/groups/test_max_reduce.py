"""A maximum by dissemination, over exchanges of simulated ranks."""

from types import SimpleNamespace

import pytest
import torch

from tests.groups.group_checks import maximum, maximum_of_equals
from tests.workers import fresh
from thinwire.groups import Op, simulate
from thinwire.groups.max_reduce import max_reduce_


class MaxReducing:
    """A group whose all-reduces are dissemination; its own transport."""

    def __init__(self, group):
        self.rank, self.size, self._group = group.rank, group.size, group
        self.process_group = SimpleNamespace(
            rank=lambda: group.rank, size=lambda: group.size
        )
        self.post_receives = group.post_receives

    def all_reduce_(self, *parts):
        assert all(op is Op.MAX for _, op in parts)
        max_reduce_([tensor for tensor, _ in parts], self)

    def swap(self, outgoing, expected):
        return [
            (src, self._group.exchange(body, dst=dst, src=src, nbytes=nbytes))
            for (dst, body), (src, nbytes) in zip(outgoing, expected, strict=True)
        ]


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("check", [maximum, maximum_of_equals])
def test_every_rank_finds_the_same_largest(check, size):
    results = simulate(size, lambda group: check(MaxReducing(group)))
    assert all(result == results[0] for result in results)
    if size > 1:
        assert results == simulate(size, check)


@pytest.mark.parametrize("size", range(1, 10))
def test_one_rank_is_heard_by_all_wherever_it_is(size):
    def body(group):
        values = torch.full((size,), -1.0)
        values[group.rank] = group.rank
        MaxReducing(group).all_reduce_((values, Op.MAX))
        return values.tolist()

    assert simulate(size, body) == [list(map(float, range(size)))] * size


@pytest.mark.processes
def test_real_processes_whose_number_is_no_power_of_two():
    outcomes = fresh(5, maximum)
    assert [each.error for each in outcomes] == [None] * 5
    assert [each.result for each in outcomes] == simulate(5, maximum)
