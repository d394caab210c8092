"""BySize: one collective from a size on, another below."""

import pytest

from tests.collectives.reductions import reduce
from thinwire.choosers import BySize
from thinwire.codecs import Split
from thinwire.collectives import BF16, AllGather, Dense, Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError

TEN = BySize(10, AllGather(0.1))


@pytest.mark.parametrize(
    ("size", "chosen"),
    [(0, Dense()), (9, Dense()), (10, AllGather(0.1)), (11, AllGather(0.1))],
)
def test_the_size_decides(size, chosen):
    xs = [[float(rank + i) for i in range(size)] for rank in range(2)]
    assert reduce(TEN, xs) == reduce(chosen, xs)
    assert TEN.cost(size, 3, Split()) == chosen.cost(size, 3, Split())


def test_from_zero_on_everything_is_large():
    assert reduce(BySize(0, AllGather(0.1)), [[]]).total == {}


@pytest.mark.parametrize(
    ("large", "small", "grade", "coded"),
    [
        (AllGather(), Dense(), Grade.ROUNDING, True),
        (AllGather(), BF16(), Grade.EXACT, True),
        (Dense(), AllGather(), Grade.ROUNDING, True),
        (BF16(), Dense(), Grade.ROUNDING, False),
    ],
)
def test_it_promises_what_both_keep(large, small, grade, coded):
    policy = BySize(5, large, small)
    assert (policy.grade, policy.coded) == (grade, coded)
    assert policy.density == large.density


def test_its_density_is_that_of_the_large():
    assert TEN.with_density(0.5) == BySize(10, AllGather(0.5))
    with pytest.raises(ConfigError, match=r"density is 1\.5"):
        TEN.with_density(1.5)
    with pytest.raises(ConfigError, match="no density"):
        BySize(10, BF16(), AllGather()).with_density(0.5)


def test_a_negative_size_is_refused():
    with pytest.raises(ConfigError, match="min_size is -1"):
        BySize(-1, AllGather())


def test_costs_are_those_of_the_chosen():
    assert TEN.cost(9, 2, Split()) == Cost(2, 36)
    assert TEN.cost(10, 2, Split()) == Cost(1, 48)
