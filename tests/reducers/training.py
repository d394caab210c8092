"""Some steps of a pipeline on simulated ranks, recorded."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire.codecs import Split
from thinwire.collectives import BF16, AllGather, Dense
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector

F32, BF, F16 = torch.float32, torch.bfloat16, torch.float16


RANKS = (1, 2, 3, 4)


EVERYTHING = {
    "dense": Pipeline(Dense()),
    "bf16": Pipeline(BF16()),
    "topk": Pipeline(AllGather(1.0), Split()),
}


SPARSE = Pipeline(AllGather(0.1), Split())


PIECES = {
    "one": [(20, F32)],
    "bfloat16": [(20, BF)],
    "float16": [(20, F16)],
    "several": [(7, F32), (13, F32)],
    "mixed": [(0, F32), (5, BF), (3, F32), (0, F16), (12, F16)],
}


@dataclass
class Diary:
    """The gradients, means and residuals of one rank, by step."""

    given: list[Tensor] = field(default_factory=list)
    written: list[Tensor] = field(default_factory=list)
    means: list[Tensor | None] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)


def cut(vector, pieces):
    """A flat gradient as pieces of their own dtype."""
    parts = vector.split([length for length, _ in pieces])
    return [p.to(d, copy=True) for p, (_, d) in zip(parts, pieces, strict=True)]


def flat(pieces):
    return torch.cat([piece.float() for piece in pieces])


def dense(mean):
    if mean is None:
        return None
    return mean.to_dense() if isinstance(mean, SparseVector) else mean.clone()


def train(pipeline, ranks, gradient, *, pieces=((20, F32),), steps=1, **options):
    """Some steps on every rank: `gradient(rank, step)` is what it gives."""
    size = sum(length for length, _ in pieces)

    def body(group):
        state, diary = pipeline.init(Layout.flat(size)), Diary()
        for step in range(steps):
            grad = cut(gradient(group.rank, step), pieces)
            diary.given.append(flat(grad))
            diary.means.append(dense(pipeline.reduce_(grad, group, state, **options)))
            diary.written.append(flat(grad))
            diary.left.append(state.memory.x.whole().clone())
            assert state.step == step + 1
        return diary

    return simulate(ranks, body)
