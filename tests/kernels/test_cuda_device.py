"""Kernels on a CUDA device: capture, no synchronization, long vectors."""

import pytest
import torch

from tests.backends import reference
from tests.kernels.cuda_inputs import (
    CUDA,
    DEVICE,
    assert_same,
    drawn,
    drawn_indices,
    on_device,
)
from tests.kernels.kernel_inputs import same_bits
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.codecs import BFloat16, EliasFano, Split
from thinwire.kernels import Hashes, interleaved_blocks
from thinwire.sparse import SparseVector

pytest.importorskip("triton", reason="needs Triton")

from thinwire.kernels.cuda import buffer, elias_fano

pytestmark = CUDA


@on_device
def test_select_on_a_device(monkeypatch):
    monkeypatch.setattr(buffer, "SHORT", 1 << 20)
    x = drawn("normal", 3_000_017)
    found = kernels.select(x, 30_000)
    with kernels.by_reference():
        assert_same(found, kernels.select(x, 30_000))


@on_device
@pytest.mark.parametrize("nnz", [0, 3, 20_001, 1_000_000])
def test_a_packet_equals_that_of_the_cpu(nnz):
    size, codec = 2_000_003, Split(EliasFano(), BFloat16(), checksum=False)
    indices, values = drawn_indices(size, nnz), drawn("normal", nnz)
    packet = codec.encode(SparseVector(indices, values, size))
    wanted = codec.encode(SparseVector(indices.cpu(), values.cpu(), size))
    assert torch.equal(packet.body.cpu(), wanted.body)
    assert codec.decode(packet, size).indices.tolist() == indices.tolist()


@on_device
def test_a_step_is_captured_and_waits_for_nothing():
    size = 2_000_003
    x, grad = Accumulator(size, DEVICE), torch.zeros(size, device=DEVICE)
    x.set_blocks(interleaved_blocks(size, 2, 1024))
    counts = [block.length // 100 for block in x.blocks]
    taken, codec = [], Split(EliasFano(), BFloat16())

    def step():
        x.accumulate_(grad)
        taken[:] = x.take(counts)
        for (indices, values), block in zip(taken, x.blocks, strict=True):
            codec.encode(SparseVector(indices, values, block.length))

    for _ in range(3):
        grad.normal_()
        step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        grad.normal_()
        step()
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(3):
        grad.normal_()
        wanted = x.whole() + grad
        graph.replay()
        for block, k, found in zip(x.blocks, counts, taken, strict=True):
            again = reference.select(wanted, k, block=block)
            assert_same(found, again)
            reference.subtract_at_(wanted, *again, block=block)
        assert same_bits(x.whole(), wanted)


@on_device
@pytest.mark.parametrize("block", [1, 1024])
def test_sketches_and_levels_wait_for_nothing(block):
    x = drawn("normal", 1_000_003)
    seen = []
    for epoch in range(2):
        hashes = Hashes(3, 100_000, block, epoch=epoch)
        torch.cuda.set_sync_debug_mode("error" if epoch else "default")
        try:
            table, out = kernels.encode_sketch(x, hashes), torch.empty_like(x)
            kernels.estimate_sketch_(out, table, hashes)
            energy = kernels.sketch_energy(table)
            section = kernels.encode_log(x, 4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seen = [table, out, energy, section]
    with kernels.by_reference():
        again = torch.empty_like(x)
        kernels.estimate_sketch_(again, table, hashes)
        wanted = [kernels.encode_sketch(x, hashes), again]
        wanted += [kernels.sketch_energy(table), kernels.encode_log(x, 4)]
    assert_same(seen, wanted)


@on_device
def test_a_sketch_is_the_same_every_time():
    x, hashes = drawn("octaves", 3_000_017), Hashes(3, 30_000, 1024)
    table = kernels.encode_sketch(x, hashes)
    section = kernels.encode_log(x, 4)
    for _ in range(20):
        assert same_bits(kernels.encode_sketch(x, hashes), table)
        assert torch.equal(kernels.encode_log(x, 4), section)


@on_device
def test_vectors_longer_than_32_bits_count():
    size = 2**31 + 5000
    blocks = kernels.contiguous_blocks(size, 2)
    x = Accumulator(size, DEVICE)
    x.set_blocks(blocks)
    for _ in range(2):
        grad = torch.zeros(size, device=DEVICE)
        grad[::1000] = 1.0
        grad[-1] = -7.0
        x.accumulate_(grad)
        taken = x.take([1000, 1000])
    # What the first step took is half as large as its equals in the second.
    assert taken[0][0].tolist() == list(range(1_000_000, 2_000_000, 1000))
    assert taken[1][0][-1].item() == blocks[1].length - 1
    assert taken[1][1][-1].item() == -7.0
    found = elias_fano.encode_elias_fano(taken[1][0], blocks[1].length, 20)
    wanted = reference.encode_elias_fano(taken[1][0], blocks[1].length, 20)
    assert torch.equal(found, wanted)
