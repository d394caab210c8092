"""The pipeline on a CUDA device: the kernels' steps are the reference's, bit by bit."""

from contextlib import nullcontext

import pytest
import torch

from thinwire import kernels
from thinwire.codecs import BFloat16, EliasFano, Int8, LogQuant, Split
from thinwire.collectives import AllGather, GTopK, SparDL
from thinwire.groups import simulate
from thinwire.kernels import cuda_room
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

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
                seen += [*parts, state.memory.x.clone()]
        return seen

    return simulate(4, body)


def cut(grad, pieces):
    lengths = [SIZE // 3, SIZE - SIZE // 3] if len(pieces) > 1 else [SIZE]
    return zip(grad.split(lengths), pieces, strict=True)


@pytest.mark.parametrize("pieces", [[torch.float32], [torch.bfloat16, torch.float16]])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_is_the_references(name, pieces, monkeypatch):
    monkeypatch.setattr(cuda_room, "SHORT", 0)
    ours, wanted = (
        train(PIPELINES[name], pieces, by_reference=by_reference)
        for by_reference in (False, True)
    )
    for rank, other in zip(ours, wanted, strict=True):
        for a, b in zip(rank, other, strict=True):
            assert torch.equal(a, b)
