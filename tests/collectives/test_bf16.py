"""BF16: every rounding error stays with the rank that made it."""

import pytest
import torch

from tests.collectives.reductions import reduce
from thinwire.collectives import BF16, Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError

TINY = 2.0**-9  # a quarter of the way from 1 to the next bfloat16


def rounded(values):
    return values.to(torch.bfloat16).float()


def test_sender_and_owner_keep_what_they_round_off():
    # Rank 0 owns element 0: the sum is 1 + 2 TINY, half-way to the next bfloat16.
    # Rank 1 owns element 1, of which rank 0 sends 1 and keeps TINY.
    result = reduce(BF16(), [[1 + TINY, 1 + TINY], [TINY, 1]])
    assert result.total == [1, 2]
    assert result.after == [[2 * TINY, TINY], [0, 0]]


def test_what_was_kept_is_delivered_when_it_adds_up():
    first = reduce(BF16(), [[1 + TINY, 1 + TINY], [TINY, 1]])
    again = [[a + b for a, b in zip(x, [1, 1], strict=True)] for x in first.after]
    second = reduce(BF16(), again)
    assert second.total == [2, 2]
    third = reduce(BF16(), second.after)
    assert third.total == [2 * TINY, TINY]
    assert third.after == [[0, 0], [0, 0]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [0, 1, 2, 11, 64])
def test_totals_are_exact_sums_rounded_once_by_their_owner(ranks, size):
    generator = torch.Generator().manual_seed(size)
    xs = torch.randn(ranks, size, generator=generator)
    result = reduce(BF16(), xs.tolist())
    total, after = torch.tensor(result.total), torch.tensor(result.after)
    short, longer = divmod(size, ranks)
    lengths = [short + (rank < longer) for rank in range(ranks)]
    owners = torch.repeat_interleave(torch.arange(ranks), torch.tensor(lengths))
    own = owners == torch.arange(ranks)[:, None]
    sums = torch.zeros(size)
    for part in torch.where(own, xs, rounded(xs)):  # in order of rank
        sums += part
    assert torch.equal(total, rounded(sums))
    sent = xs - rounded(xs)
    assert torch.equal(after, torch.where(own, sums - rounded(sums), sent))
    # Two roundings of at most 2**-8 each, of the parts and of their sum.
    error = (total.double() - xs.double().sum(0)).abs()
    assert (error <= 2.0**-7 * 1.01 * xs.abs().sum(0)).all()


def test_eight_bits_are_delivered_whole():
    xs = [[float(rank * i % 32) for i in range(9)] for rank in range(8)]
    result = reduce(BF16(), xs)
    assert result.total == [sum(column) for column in zip(*xs, strict=True)]
    assert result.after == [[0] * 9] * 8


def test_its_card():
    assert BF16().grade is Grade.EXACT
    assert not BF16().coded
    assert BF16().density is None
    # Rank 0 owns 4 of 10: it sends 6 elements away and its 4 sums to two peers.
    assert BF16().cost(10, 3, None) == Cost(4, 2 * 6 + 2 * 4 * 2)
    assert BF16().cost(10, 1, None) == Cost()
    with pytest.raises(ConfigError, match=r"BF16\(\) keeps everything"):
        BF16().with_density(0.5)
