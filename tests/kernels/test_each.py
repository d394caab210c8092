"""Primitives that combine others: equal to their parts, one by one."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import same_bits, some_indices, vector
from thinwire import kernels
from thinwire.kernels import Block

BACKENDS = pytest.mark.parametrize("backend", [cpu, reference], ids=["cpu", "plain"])


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert same_bits(a, b)


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
@pytest.mark.parametrize("subtracting", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_keep_at(backend, count, subtracting):
    indices, values = some_indices(100, 40), vector("ties", 40)
    sent = vector("ties", 41)[1:] if subtracting else None
    whole = values - sent if subtracting else values
    total = torch.zeros(100)
    for number in range(count):
        x = torch.zeros(300)
        backend.return_at_(
            x,
            indices,
            values,
            sent=sent,
            holders=(count, number),
            block=Block(100, 50, 100, 100),
        )
        total += torch.cat([x[100:150], x[200:250]])
        assert not x[150:200].any()
    wanted = torch.zeros(100)
    wanted[indices.long()] = whole
    assert same_bits(total + 0.0, wanted + 0.0)


@BACKENDS
def test_values_sent_completely_are_not_written(backend):
    x = torch.tensor([-0.0, -0.0])
    ones = torch.ones(2)
    indices = torch.tensor([0, 1], dtype=torch.int32)
    sent = torch.tensor([1.0, 0.5])
    block = Block.whole(2)
    backend.return_at_(x, indices, ones, sent=sent, holders=(1, 0), block=block)
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
