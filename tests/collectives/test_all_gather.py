"""AllGather: worked examples."""

import pytest

from tests.collectives.reductions import reduce
from tests.laws.cases import CODECS
from thinwire.codecs import Split
from thinwire.collectives import AllGather, Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError


def test_everyones_largest_are_delivered_and_the_rest_stays():
    result = reduce(AllGather(1 / 3), [[3, -3, 3, 0, 1, 0], [0, 0, 0, 5, 0, -4]])
    assert result.total == {0: 3, 1: -3, 3: 5, 5: -4}  # of three 3s the first two
    assert result.after == [[0, 0, 3, 0, 1, 0], [0, 0, 0, 0, 0, 0]]


def test_lists_that_overlap_are_added_in_order_of_rank():
    result = reduce(AllGather(0.5), [[1e8, 0], [1, 0], [-1e8, 0]])
    assert result.total == {0: 0.0}
    assert result.after == [[0, 0]] * 3


def test_what_a_codec_rounds_off_stays():
    close = 1.0 + 2.0**-9
    result = reduce(
        AllGather(0.5), [[close, 0.5], [0.25, 2.0]], codec=CODECS["int32+bfloat16"]
    )
    assert result.total == {0: 1.0, 1: 2.0}
    assert result.after == [[2.0**-9, 0.5], [0.25, 0.0]]


@pytest.mark.parametrize(
    ("density", "k"), [(0.001, 1), (0.1, 1), (0.29, 2), (0.5, 5), (0.999, 9), (1.0, 10)]
)
def test_exactly_k_entries_are_listed_even_of_zeros(density, k):
    assert reduce(AllGather(density), [[0.0] * 10]).total == dict.fromkeys(range(k), 0)
    assert len(reduce(AllGather(density), [list(range(10))]).total) == k


def test_an_empty_vector_has_an_empty_total():
    assert reduce(AllGather(0.5), [[], []]).total == {}


@pytest.mark.parametrize("density", [0, 0.0, -1, 1.5, float("nan"), float("inf")])
def test_a_density_is_a_fraction(density):
    with pytest.raises(ConfigError, match=r"density is .* above 0 and at most 1"):
        AllGather(density)
    with pytest.raises(ConfigError, match="density is"):
        AllGather().with_density(density)


def test_another_density_changes_nothing_else():
    assert AllGather(0.1).with_density(0.2) == AllGather(0.2)
    assert AllGather().density == 0.01


def test_its_card():
    collective = AllGather(0.1)
    assert collective.grade is Grade.EXACT
    assert collective.coded
    assert collective.cost(100, 5, Split()) == Cost(4, 4 * (32 + 40 + 40))
    assert collective.cost(100, 1, Split()) == Cost()
    with pytest.raises(ConfigError, match="depend on the data"):
        collective.cost(100, 5, CODECS["unsized"])
