"""Dense: the total is the sum, and no residual is left."""

import pytest

from tests.collectives.reductions import reduce
from thinwire.collectives import Dense, Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_everything_is_delivered(ranks, size):
    xs = [[float(10 * rank + i) for i in range(size)] for rank in range(ranks)]
    result = reduce(Dense(), xs)
    assert result.total == [sum(column) for column in zip(*xs, strict=True)]
    assert result.after == [[0] * size] * ranks


def test_its_card():
    assert Dense().grade is Grade.ROUNDING
    assert not Dense().coded
    assert Dense().density is None
    assert Dense().cost(1000, 4, None) == Cost(6, 6000)
    with pytest.raises(ConfigError, match=r"Dense\(\) keeps everything"):
        Dense().with_density(0.5)
