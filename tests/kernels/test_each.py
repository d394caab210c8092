"""Primitives that do several things at once: what they are made of, one by one."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import same_bits, some_indices, vector, ways_to_cut
from thinwire import kernels
from thinwire.kernels import Block, Marker

BACKENDS = pytest.mark.parametrize("backend", [cpu, reference], ids=["cpu", "plain"])


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert same_bits(a, b)


@BACKENDS
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", range(6))
def test_take_each(backend, cut, rounding):
    blocks = ways_to_cut(1000)[cut]
    marker = Marker(blocks, lending=True)
    x, y = torch.zeros(1000), torch.zeros(1000)
    counts = [block.length // 10 for block in blocks]
    for name in ("normal", "ties", "octaves"):
        grad = vector(name, 1000)
        y += grad
        backend.accumulate_(x, grad, offset=0, scale=1.0, marker=marker)
        given = {"marker": marker, "numbers": range(len(blocks)), "rounding": rounding}
        taken = backend.take_each(x, counts, **given)
        for block, k, found in zip(blocks, counts, taken, strict=True):
            wanted = reference.select(y, k, block=block, marker=None, number=0)
            assert_same(found, wanted)
            told = wanted[1].to(rounding).float()
            reference.subtract_at_(y, wanted[0], told, block=block)
        assert same_bits(x, y)


def test_some_blocks_or_all():
    marker = Marker(kernels.contiguous_blocks(100, 4))
    x = vector("normal", 100)
    every = kernels.select_each(x, [2] * 4, marker=marker)
    some = kernels.select_each(x, [2, 2], marker=marker, numbers=[3, 1])
    assert_same(some[0], every[3])
    assert_same(some[1], every[1])
    with pytest.raises(ValueError, match=r"not torch\.float16"):
        kernels.take_each(x, [2] * 4, marker=marker, rounding=torch.float16)
    with pytest.raises(ValueError, match=r"\[0, 1, 0\]: name each of them once"):
        kernels.take_each(x, [2] * 3, marker=marker, numbers=[0, 1, 0])
    taken = kernels.take_each(x, [2] * 4, marker=marker)
    for found, wanted in zip(taken, every, strict=True):
        assert_same(found, wanted)


@BACKENDS
def test_merge_split(backend):
    left, right = ((some_indices(500, n), vector("ties", n)) for n in (90, 60))
    wanted = reference.split(*reference.merge_add(*left, *right), 70)
    found = backend.merge_split(left, right, 70)
    for part, other in zip(found, wanted, strict=True):
        assert_same(part, other)
    assert_same(kernels.merge_split(left, right, 70)[0], wanted[0])


@BACKENDS
def test_leave_at(backend):
    x, indices = vector("octaves", 300), some_indices(300, 40)
    y, block = x.clone(), Block.whole(300)
    held, sent = x[indices.long()], vector("normal", 40)
    backend.leave_at_(x, indices, held, sent, block=block)
    reference.subtract_at_(y, indices, sent, block=block)
    assert same_bits(x, y)
    kernels.leave_at_(x, indices, x[indices.long()], sent)
    reference.subtract_at_(y, indices, sent, block=block)
    assert same_bits(x, y)


@BACKENDS
@pytest.mark.parametrize("telling", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_keep_at(backend, count, telling):
    indices, values = some_indices(100, 40), vector("ties", 40)
    told = vector("ties", 41)[1:] if telling else None
    whole = values - told if telling else values
    total = torch.zeros(100)
    for number in range(count):
        x = torch.zeros(300)
        backend.keep_at_(
            x,
            indices,
            values,
            told=told,
            holders=(count, number),
            block=Block(100, 50, 100, 100),
        )
        total += torch.cat([x[100:150], x[200:250]])
        assert not x[150:200].any()
    wanted = torch.zeros(100)
    wanted[indices.long()] = whole
    assert same_bits(total + 0.0, wanted + 0.0)


@BACKENDS
def test_what_was_told_whole_is_left_alone(backend):
    x = torch.tensor([-0.0, -0.0])
    ones = torch.ones(2)
    indices = torch.tensor([0, 1], dtype=torch.int32)
    told = torch.tensor([1.0, 0.5])
    block = Block.whole(2)
    backend.keep_at_(x, indices, ones, told=told, holders=(1, 0), block=block)
    assert same_bits(x, torch.tensor([-0.0, 0.5]))


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_write_mean(backend, dtype):
    indices, values = some_indices(300, 40), vector("normal", 40)
    for lengths in ([300], [0, 100, 1, 199]):
        for write in (backend.write_mean_, kernels.write_mean_):
            pieces = [torch.zeros(n, dtype=dtype) for n in lengths]
            mean = write(pieces, indices, values, ranks=3)
            assert same_bits(mean, values / 3)
            wanted = torch.zeros(300, dtype=dtype)
            wanted[indices.long()] = mean.to(dtype)
            assert same_bits(torch.cat(pieces), wanted)
