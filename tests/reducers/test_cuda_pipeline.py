"""The pipeline on a CUDA device: the reference's bits, no synchronization."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist

from tests.workers import pool
from thinwire import kernels
from thinwire.channel import Channel, ListSpec
from thinwire.codecs import BFloat16, EliasFano, Int8, LogQuant, Split
from thinwire.collectives import AllGather, GTopK, SparDL
from thinwire.groups import simulate
from thinwire.groups.torch import TorchGroup
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 100_003
PIPELINES = {
    "topk": Pipeline(AllGather(0.01), Split(EliasFano(), BFloat16())),
    "gtopk": Pipeline(GTopK(0.01), Split(EliasFano(), LogQuant(4))),
    "spardl": Pipeline(SparDL(0.01), Split(EliasFano(), BFloat16())),
    "spardl in teams": Pipeline(SparDL(0.02, teams=2), Split(EliasFano(), Int8())),
    "contiguous": Pipeline(SparDL(0.01, partition="contiguous"), Split()),
}


def train(pipeline, pieces, *, by_reference):
    def body(group):
        state = pipeline.init(Layout.flat(SIZE), "cuda")
        generator = torch.Generator("cuda").manual_seed(group.rank)
        seen = []
        with kernels.by_reference() if by_reference else nullcontext():
            for _ in range(4):
                grad = torch.randn(SIZE, device="cuda", generator=generator)
                parts = [part.to(dtype, copy=True) for part, dtype in cut(grad, pieces)]
                pipeline.reduce_(parts, group, state)
                seen += [*parts, state.memory.x.whole().clone()]
        return seen

    return simulate(4, body)


def cut(grad, pieces):
    lengths = [SIZE // 3, SIZE - SIZE // 3] if len(pieces) > 1 else [SIZE]
    return zip(grad.split(lengths), pieces, strict=True)


@pytest.mark.parametrize("pieces", [[torch.float32], [torch.bfloat16, torch.float16]])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_is_the_references(name, pieces, monkeypatch):
    from thinwire.kernels.cuda import buffer

    monkeypatch.setattr(buffer, "SHORT", 0)
    ours, wanted = (
        train(PIPELINES[name], pieces, by_reference=by_reference)
        for by_reference in (False, True)
    )
    for rank, other in zip(ours, wanted, strict=True):
        for a, b in zip(rank, other, strict=True):
            assert torch.equal(a, b)


FIXED = {
    "gtopk": Pipeline(GTopK(0.01), Split(EliasFano(), Int8())),
    "spardl": Pipeline(SparDL(0.01), Split(EliasFano(), BFloat16())),
    "spardl in teams": Pipeline(SparDL(0.01, teams=2), Split()),
}


@contextmanager
def refusing_to_wait():
    """An error for every copy, or read, that the host would wait for."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def take_steps(group, name, size):
    """Steps of which the last ones wait for nothing but Gloo and the guard's word."""
    pipeline = FIXED[name]
    group = TorchGroup(timeout=20.0, device="cuda")
    state = pipeline.init(Layout.flat(size), "cuda")
    grads = [torch.randn(size, device="cuda") for _ in range(6)]
    for grad in grads[:4]:
        pipeline.reduce_([grad], group, state)
    with refusing_to_wait():
        for grad in grads[4:]:
            pipeline.reduce_([grad], group, state)
    state.raise_deferred_errors(wait=True)
    return [grad.cpu() for grad in grads]


@pytest.mark.processes
@pytest.mark.parametrize("size", [40_003, 6_000_001])
@pytest.mark.parametrize("name", FIXED)
def test_over_gloo_only_its_own_copies_are_waited_for(name, size):
    first, second = pool(2).run(take_steps, name, size)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.fixture(scope="module")
def nccl():
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield TorchGroup.own(timeout=20.0)
    dist.destroy_process_group()


@pytest.fixture
def no_waiting(monkeypatch):
    def refuse(event):
        raise AssertionError("the host waits for an event")

    monkeypatch.setattr(torch.cuda.Event, "synchronize", refuse)


@pytest.mark.parametrize("size", [40_003, 3_000_001])
@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(
            AllGather(0.01), Split(EliasFano(), BFloat16()), on_nonfinite="unchecked"
        ),
        Pipeline(GTopK(0.01), Split(EliasFano(), Int8()), on_nonfinite="unchecked"),
        Pipeline(SparDL(0.01), Split(), on_nonfinite="unchecked"),
    ],
    ids=["topk", "gtopk", "spardl"],
)
def test_over_nccl_nothing_is_waited_for(pipeline, size, nccl, no_waiting):
    state = pipeline.init(Layout.flat(size), "cuda")
    for step in range(5):
        grad = torch.randn(size, device="cuda")
        before = grad + state.memory.x.whole()
        if step < 3:
            pipeline.reduce_([grad], nccl, state)
        else:
            with refusing_to_wait():
                pipeline.reduce_([grad], nccl, state)
        torch.cuda.synchronize()  # the host may run two steps ahead, no more
        assert torch.equal(grad + state.memory.x.whole(), before)


@pytest.mark.parametrize("damage", [None, 0, 17, 800])
def test_packets_over_nccl_are_judged_without_waiting(damage, nccl, no_waiting):
    codec = Split(EliasFano(), BFloat16())
    errors = kernels.DeferredErrors(1, torch.device("cuda", 0))
    channel = Channel(nccl, codec, deferred_errors=errors)
    x = torch.randn(100_000, device="cuda")
    vector = SparseVector(*kernels.select(x, 1000), 100_000)
    wrong = torch.tensor([255], dtype=torch.uint8, device="cuda")
    spec = ListSpec(vector.size, vector.nnz)
    for _ in range(2):
        sealed = channel.seal(vector)
        channel.exchange([sealed], dst=0, src=0, expect=[spec])
    with refusing_to_wait():
        sealed = channel.seal(vector)
        if damage is not None:
            sealed.body[damage : damage + 1].copy_(wrong)
        (got,) = channel.exchange([sealed], dst=0, src=0, expect=[spec])
        errors.start_copy()
    torch.cuda.synchronize()
    assert errors.found() == ([] if damage is None else [0])
    if damage is None:
        assert torch.equal(got.vector.indices, vector.indices)
