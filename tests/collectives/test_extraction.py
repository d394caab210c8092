"""Extraction of candidates changes no step: each equals the reference's."""

from contextlib import nullcontext

import pytest
import torch

from tests.interpreted import use_triton
from thinwire import kernels
from thinwire.choosers import Auto, Warmup
from thinwire.codecs import BFloat16, EliasFano, Int8, Split
from thinwire.collectives import AllGather, SparDL
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZE = 701


class Moving(SparDL):
    """Other blocks in the first step than in later ones."""

    def all_reduce_(self, x, channel, state, out):
        partition = "contiguous" if channel.step == 0 else "interleaved"
        now = SparDL(self.density, partition=partition)
        return now.all_reduce_(x, channel, state, out)


DEFAULT = Split(EliasFano(), BFloat16())
PIPELINES = {
    "other values": Pipeline(AllGather(0.02), Split(EliasFano(), Int8())),
    "then dense": Pipeline(Warmup(AllGather(0.02), dense=1), DEFAULT),
    "auto, then dense": Pipeline(Warmup(Auto(0.02, (AllGather(),)), dense=1), DEFAULT),
    "then in other blocks": Pipeline(Moving(0.02), DEFAULT),
}
# As after steps that were taken back, the first one comes last.
STEPS = (1, 1, 0)
RANKS = 2


def run(pipeline, *, by_reference=False):
    def body(group):
        generator = torch.Generator().manual_seed(group.rank)
        state = pipeline.init(Layout.flat(SIZE))
        seen = []
        with kernels.by_reference() if by_reference else nullcontext():
            for step in STEPS:
                state.step = step
                grad = torch.randn(SIZE, generator=generator)
                pipeline.reduce_([grad], group, state)
                seen += [grad, state.memory.x.whole().clone()]
        return seen

    return simulate(RANKS, body)


@pytest.fixture
def extracted(monkeypatch):
    """How many blocks candidates were extracted from, time by time."""
    use_triton(monkeypatch, "accumulate_", "new_candidates", "add_at_", "select")
    from thinwire.kernels.cuda.buffer import CandidateBuffer

    counts, accumulate_ = [], CandidateBuffer.accumulate_

    def counting(buffer, *given, **options):
        accumulate_(buffer, *given, **options)
        counts.append(len(buffer.extracted))

    monkeypatch.setattr(CandidateBuffer, "accumulate_", counting)
    return counts


@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_is_the_references(name, extracted):
    ours = run(PIPELINES[name])
    assert (sum(extracted) > 0) == (name != "other values")
    for rank, other in zip(ours, run(PIPELINES[name], by_reference=True), strict=True):
        for a, b in zip(rank, other, strict=True):
            assert torch.equal(a, b)
