"""Checks for every group: each runs on every rank, simulated or real.

What a check returns must be the same on all ranks.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups import Group, Op


def body_of(rank: int, nbytes: int) -> Tensor:
    """Bytes that no other rank sends."""
    return (torch.arange(nbytes) * 7 + rank * 31).to(torch.uint8)


def _neighbours(group: Group) -> tuple[int, int]:
    return (group.rank + 1) % group.size, (group.rank - 1) % group.size


def ring(group: Group) -> None:
    dst, src = _neighbours(group)
    for nbytes in (1, 1000, 70_001):
        sent = body_of(group.rank, nbytes)
        received = group.exchange(sent, dst=dst, src=src, nbytes=nbytes)
        assert received is not None
        assert received.equal(body_of(src, nbytes))


def ring_of_unknown_lengths(group: Group) -> None:
    dst, src = _neighbours(group)
    for step in range(3):
        sent = body_of(group.rank, 5 * group.rank * step)
        received = group.exchange(sent, dst=dst, src=src, nbytes=None)
        assert received is not None
        assert received.equal(body_of(src, 5 * src * step))


def ring_of_nothing(group: Group) -> None:
    dst, src = _neighbours(group)
    received = group.exchange(body_of(0, 0), dst=dst, src=src, nbytes=0)
    assert received is not None
    assert received.shape == (0,)
    assert received.dtype == torch.uint8


def expected_ring(group: Group) -> None:
    """What is expected comes in its order, next to what is not, again and again."""
    dst, src = _neighbours(group)
    lengths = (1000, 0, 70_001)
    for step in range(3):
        group.post_receives([(src, nbytes) for nbytes in lengths if src != group.rank])
        group.exchange(body_of(0, 3), dst=group.rank, src=group.rank, nbytes=3)
        for nbytes in lengths:
            sent = body_of(group.rank + step, nbytes)
            received = group.exchange(sent, dst=dst, src=src, nbytes=nbytes)
            assert received is not None
            assert received.equal(body_of(src + step, nbytes))
    ring(group)


def expected_from_several(group: Group) -> None:
    """Who is expected from several sends to each of them."""
    others = [(group.rank + s) % group.size for s in range(1, group.size)]
    group.post_receives([(src, 20 + src) for src in reversed(others)])
    for dst, src in zip(others, reversed(others), strict=True):
        sent = body_of(group.rank, 20 + group.rank)
        received = group.exchange(sent, dst=dst, src=src, nbytes=20 + src)
        assert received is not None
        assert received.equal(body_of(src, 20 + src))


def pairs(group: Group) -> None:
    peer = group.rank ^ 1
    if peer >= group.size:
        assert group.exchange(None, dst=None, src=None, nbytes=None) is None
        return
    # Different lengths each way: each end states the length of what it receives.
    sent = body_of(group.rank, 10 + group.rank)
    received = group.exchange(sent, dst=peer, src=peer, nbytes=10 + peer)
    assert received is not None
    assert received.equal(body_of(peer, 10 + peer))


def _chain(group: Group, nbytes: int | None) -> None:
    """One-way steps: each rank passes on what it was given."""
    held: Tensor | None = body_of(0, 9)
    if group.rank > 0:
        held = group.exchange(None, dst=None, src=group.rank - 1, nbytes=nbytes)
    assert held is not None
    assert held.equal(body_of(0, 9))
    if group.rank < group.size - 1:
        dst = group.rank + 1
        assert group.exchange(held, dst=dst, src=None, nbytes=nbytes) is None


def chain(group: Group) -> None:
    _chain(group, 9)


def chain_of_unknown_lengths(group: Group) -> None:
    _chain(group, None)


def all_gather(group: Group) -> list[list[int]]:
    lengths = [3 * rank for rank in range(group.size)]  # rank 0 has nothing to say
    body = body_of(group.rank, lengths[group.rank])
    known = group.all_gather(body, nbytes=lengths)
    unknown = group.all_gather(body, nbytes=None)
    for rank, nbytes in enumerate(lengths):
        assert known[rank].equal(body_of(rank, nbytes))
        assert unknown[rank].equal(body_of(rank, nbytes))
    return [body.tolist() for body in known]


def all_gather_of_equal_lengths(group: Group) -> list[list[int]]:
    body = body_of(group.rank, 100)
    bodies = group.all_gather(body, nbytes=[100] * group.size)
    return [body.tolist() for body in bodies]


def all_to_all(group: Group) -> None:
    size = group.size
    sent = [body_of(group.rank, group.rank + dst) for dst in range(size)]
    lengths = [src + group.rank for src in range(size)]
    for nbytes in (lengths, None):
        received = group.all_to_all(sent, nbytes=nbytes)
        for src in range(size):
            assert received[src].equal(body_of(src, lengths[src]))


def all_reduce(group: Group) -> list[Any]:
    values = torch.arange(1000, dtype=torch.float32) + group.rank
    peak = torch.tensor([float(group.rank), -float(group.rank)])
    bits = torch.tensor([1 << group.rank, 256], dtype=torch.int16)
    flags = torch.arange(group.size) == group.rank
    scalar = torch.tensor(group.rank)
    group.all_reduce_(
        (values, Op.SUM),
        (peak, Op.MAX),
        (bits, Op.OR),
        (flags, Op.OR),
        (scalar, Op.SUM),
    )
    size = group.size
    ranks = size * (size - 1) // 2
    expected = torch.arange(1000, dtype=torch.float32) * size + ranks
    assert values.equal(expected)
    assert peak.tolist() == [size - 1, 0]
    assert bits.tolist() == [(1 << size) - 1, 256]
    assert bool(flags.all())
    assert scalar.item() == ranks
    return values.tolist()


def all_reduce_of_floats(group: Group) -> list[float]:
    """Whatever the order of additions, it is the same on every rank."""
    generator = torch.Generator().manual_seed(group.rank)
    values = torch.randn(1001, generator=generator)
    group.all_reduce_((values, Op.SUM))
    return values.tolist()


FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)


def maximum(group: Group) -> list[list[int]]:
    """Wherever the largest is, and however many have it."""
    rank, size = group.rank, group.size
    numbers = [-3 - rank, -7, rank % 2, 5 * (rank == size - 1), (7 * rank + 3) % size]
    floats = [*numbers, rank / 4, -math.inf, math.inf if rank == size // 2 else -1.0]
    everyone = [(7 * other + 3) % size for other in range(size)]
    largest = [-3, -7, int(size > 1), 5, max(everyone)]
    seen = []
    for dtype in (*FLOATS, *INTEGERS):
        real = dtype.is_floating_point
        values = torch.tensor(floats if real else numbers).to(dtype)
        peak = [*largest, (size - 1) / 4, -math.inf, math.inf] if real else largest
        if dtype == torch.uint8:
            values, peak = values[2:].clone(), peak[2:]
        group.all_reduce_((values, Op.MAX))
        assert values.tolist() == peak
        seen.append(values.view(torch.uint8).tolist())
    return seen


def maximum_of_equals(group: Group) -> list[list[int]]:
    """Numbers that are equal and look different end as the same bits everywhere."""
    seen = []
    for dtype in FLOATS:
        zero = 0.0 if group.rank % 2 else -0.0
        nan = math.copysign(math.nan, group.rank % 2 - 0.5)
        values = torch.tensor([zero, -zero, nan, -nan] * 9, dtype=dtype)
        group.all_reduce_((values, Op.MAX))
        assert values[:2].tolist() == [0, 0]
        assert bool(values[2:4].isnan().all())
        seen.append(values.view(torch.uint8).tolist())
    return seen


def maxima_in_passing(group: Group) -> list[float]:
    """Several of them, beside sums that take longer."""
    first, second = torch.tensor(group.rank), torch.tensor([[-1.0], [group.rank]])
    total = torch.full((50_000,), float(group.rank))
    group.all_reduce_((first, Op.MAX), (total, Op.SUM), (second, Op.MAX))
    last = group.size - 1
    assert first.item() == last
    assert second.tolist() == [[-1.0], [last]]
    assert total.unique().tolist() == [group.size * last / 2]
    return total[:1].tolist()


def all_reduce_of_nothing(group: Group) -> None:
    group.all_reduce_()
    group.all_reduce_((torch.zeros(0), Op.SUM))
    group.all_reduce_((torch.zeros(0), Op.MAX))


def nothing_is_shared(group: Group) -> list[list[int]]:
    """What is sent may change at once, and what is received is the receiver's."""
    dst, src = _neighbours(group)
    sent = body_of(group.rank, 50)
    received = group.exchange(sent, dst=dst, src=src, nbytes=50)
    sent.zero_()
    assert received is not None
    received += 1
    body = body_of(group.rank, 50)
    bodies = group.all_gather(body, nbytes=[50] * group.size)
    body.zero_()
    bodies[group.rank] += 1
    group.all_gather(body_of(0, 0), nbytes=[0] * group.size)
    bodies[group.rank] -= 1
    assert received.equal(body_of(src, 50) + 1)
    return [body.tolist() for body in bodies]


def wrong_calls_are_refused(group: Group) -> None:
    """All ranks make the same invalid call; nothing is sent, the group stays usable."""
    good = body_of(0, 4)
    dst, src = _neighbours(group)
    with pytest.raises(GroupError, match="one-dimensional uint8"):
        group.exchange(good.float(), dst=dst, src=src, nbytes=4)
    with pytest.raises(GroupError, match="no rank 99"):
        group.exchange(good, dst=99, src=src, nbytes=4)
    with pytest.raises(GroupError, match="destination"):
        group.exchange(None, dst=dst, src=src, nbytes=4)
    with pytest.raises(GroupError, match="itself"):
        group.exchange(good, dst=group.rank, src=None, nbytes=4)
    with pytest.raises(GroupError, match="expects 4 bytes of rank 99"):
        group.post_receives([(99, 4)])
    with pytest.raises(GroupError, match=f"bytes of rank {group.rank}"):
        group.post_receives([(group.rank, 4)])
    with pytest.raises(GroupError, match=r"sends 4 bytes but announced 5"):
        group.all_gather(good, nbytes=[5] * group.size)
    with pytest.raises(GroupError, match="lengths for a group"):
        group.all_gather(good, nbytes=[4] * (group.size + 1))
    with pytest.raises(GroupError, match="bodies for a group"):
        group.all_to_all([good] * (group.size + 1), nbytes=None)
    with pytest.raises(GroupError, match="OR combines integers"):
        group.all_reduce_((torch.zeros(2), Op.OR))
    with pytest.raises(GroupError, match="contiguous"):
        group.all_reduce_((torch.zeros(2, 2).t(), Op.SUM))


CHECKS = [
    ring,
    ring_of_unknown_lengths,
    ring_of_nothing,
    expected_ring,
    expected_from_several,
    pairs,
    chain,
    chain_of_unknown_lengths,
    all_gather,
    all_gather_of_equal_lengths,
    all_to_all,
    all_reduce,
    all_reduce_of_floats,
    maximum,
    maximum_of_equals,
    maxima_in_passing,
    all_reduce_of_nothing,
    nothing_is_shared,
    wrong_calls_are_refused,
]
