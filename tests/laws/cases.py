"""The cases of the laws: add a collective, a codec or a policy to its list."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from thinwire.catalog import DEFAULT_CODEC, INDEX_CODECS, VALUE_CODECS, codec
from thinwire.channel import Channel
from thinwire.choosers import Auto, AutoWarmup, BySize, Warmup, choose
from thinwire.codecs import Codec, CodecWrapper, Float32, Int32, Split
from thinwire.collectives import (
    BF16,
    S2,
    AllGather,
    Collective,
    Dense,
    GsSGD,
    GTopK,
    MinBytes,
    OkTopK,
    SparDL,
    TopKDSA,
    UnionReduce,
)
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.feedback import Residual
from thinwire.groups import Counted, Group
from thinwire.layout import Layout
from thinwire.sparse import SparseVector

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 16)
# What every case is tried on; the others with one kind of data and one codec, since the
# time goes with the square of the number of ranks.
FEW_RANKS = (1, 2, 3, 4, 6, 7)
PROCESSES = (2, 3, 4, 5, 6)
SIZES = (0, 1, 2, 1000, 5003)
MIDDLE = 1000


@dataclass(frozen=True)
class Unsized(CodecWrapper):
    """A codec whose packets have no fixed length."""

    codec: Codec

    def nbytes(self, size: int, nnz: int) -> None:
        return None

    def header(self, size, nnz):
        return None


CODECS: dict[str, Codec] = {
    "raw": Split(),
    "unsized": Unsized(Split(Int32(), Float32())),
    **{f"{name}+float32": Split(index) for name, index in INDEX_CODECS.items()},
    **{f"int32+{name}": Split(Int32(), value) for name, value in VALUE_CODECS.items()},
    **{
        name: codec(name)
        for name in (
            DEFAULT_CODEC,
            "rice+log4",
            "bloom-p2+qsgd",
            "bloom-p0+fit-poly",
            "bloom-p2+fit-dexp",
        )
    },
}
# What these deliver of whole numbers are not numbers whose sums float32 holds.
BROKEN_NUMBERS = ("qsgd", "fit-poly", "fit-dexp")

COLLECTIVES: dict[str, Collective] = {
    "dense": Dense(),
    "bf16": BF16(),
    "topk-1%": AllGather(0.01),
    "topk-30%": AllGather(0.3),
    "topk-100%": AllGather(1.0),
    "warmup": Warmup(AllGather(0.01), dense=1, ramp=2),
    "warmup-auto": AutoWarmup(AllGather(0.1), age=0.5),
    "by-size": BySize(1000, AllGather(0.05)),
    "gtopk-butterfly": GTopK(0.05),
    "gtopk-tree": GTopK(0.05, "tree"),
    "gtopk-naive": GTopK(0.05, "naive"),
    "gtopk-100%": GTopK(1.0),
    "spardl": SparDL(0.05),
    "spardl-contiguous": SparDL(0.05, partition="contiguous"),
    "spardl-direct": SparDL(0.05, scatter="direct"),
    "spardl-halving": SparDL(0.05, scatter="halving"),
    "spardl-2-halving": SparDL(0.05, teams=2, scatter="halving"),
    "spardl-100%": SparDL(1.0),
    "spardl-auto": SparDL(0.05, teams="auto"),
    "spardl-2": SparDL(0.05, teams=2),
    "spardl-2-bruck": SparDL(0.05, teams=2, gather="bruck"),
    "spardl-3": SparDL(0.05, teams=3),
    "spardl-4": SparDL(0.05, teams=4),
    "spardl-7": SparDL(0.05, teams=7),
    "spardl-warmup": Warmup(SparDL(0.01, teams=3), dense=0, ramp=2),
    # Dense steps in some groups, then lists.
    "spardl-warmup-auto": AutoWarmup(SparDL(0.05, teams=2), age=1.0),
    # Another number of teams at every density.
    "spardl-moving": Warmup(
        SparDL(0.002, teams="auto", link=Link(1e-4, 1e8)), ramp=2, start=0.1
    ),
    "ok-topk": OkTopK(0.05),
    "ok-topk-anew": OkTopK(0.05, threshold_every=1, regions_every=2),
    "ok-topk-100%": OkTopK(1.0),
    # Another k in every step, which the threshold follows.
    "ok-topk-warmup": Warmup(OkTopK(0.01), dense=0, ramp=2),
    "topk-dsa": TopKDSA(0.05),
    "topk-dsa-30%": TopKDSA(0.3),
    "topk-dsa-100%": TopKDSA(1.0),
    "gs-sgd": GsSGD(0.02),
    "gs-sgd-tree": GsSGD(0.02, sum="tree"),
    "gs-sgd-allreduce": GsSGD(0.02, rows=1, block=1, sum="allreduce"),
    "gs-sgd-sketch-all": GsSGD(0.02, rows=5, sum="tree", sketched=None),
    "gs-sgd-sum-all": GsSGD(0.05, sum="tree"),
    "gs-sgd-odd": GsSGD(0.03, rows=7, columns=97, candidates=1, block=50, sum="tree"),
    "gs-sgd-heavymix": GsSGD(0.05, sum="tree", recover="heavymix"),
    "gs-sgd-mean": GsSGD(0.02, sum="tree", estimate="mean"),
    "gs-sgd-one-round": GsSGD(0.05, rounds=1, sum="tree"),
    "union": UnionReduce(0.05),
    "union-blocks": UnionReduce(0.05, "block", width=7),
    "s2": S2(0.02),
    "s2-blocks": S2(0.02, "block", width=7),
    "s2-100%": S2(1.0),
    "s2-stuck": S2(0.1, "block", width=3, columns=5),
    "s2-median": S2(0.02, decode="median"),
    "s2-mean": S2(0.05, rows=2, columns=20, decode="mean"),
    "cheapest": MinBytes(0.05),
    "cheapest-100%": MinBytes(1.0),
    # Two steps of a candidate, then another.
    "auto": Auto(0.05, rounds=1, visit=2, recheck=1),
    "cheapest-linked": MinBytes(0.02, "block", width=7, link=Link(1e-3, 1e9)),
}
# What these send follows from the data; their cards state the most.
BY_DATA = tuple(
    name
    for name, collective in COLLECTIVES.items()
    if isinstance(collective, UnionReduce | S2 | MinBytes)
)

# What these send follows from how many entries fall into a region; their cards are for
# regions with equal shares.
BY_REGION = tuple(
    name for name in COLLECTIVES if name.startswith(("ok-topk", "topk-dsa"))
)

# A codec's lists are single-holder lists in the first, shared ones in the second, and
# parts of the only block in the third.
EVERY_CODEC = ("topk-1%", "spardl-2", "ok-topk")


@dataclass(frozen=True)
class Case:
    """One collective with one codec over vectors of one size."""

    collective: str
    codec: str | None
    size: int

    def __str__(self) -> str:
        return f"{self.collective}-{self.codec}-{self.size}"


def ranks_for(name: str, ranks: Iterable[int] = RANKS) -> list[int]:
    """The numbers of ranks that a collective serves."""
    return [count for count in ranks if _serves(COLLECTIVES[name], count)]


def usual_ranks(case: Case, data: str) -> list[int]:
    """The numbers of ranks of the quick run; the rest is for the full product.

    Every collective at every size on whole numbers, on most ranks at one of them, where
    it is also tried with its default codec and on other data, on some also where there
    is next to nothing to send; every codec with two collectives.
    """
    name = case.collective
    if case.codec in (None, "raw") and data == "integers":
        return ranks_for(name, RANKS if case.size == MIDDLE else FEW_RANKS)
    if case.codec == DEFAULT_CODEC and case.size < MIDDLE and data == "integers":
        return ranks_for(name, (2, 5))
    if case.size != MIDDLE:
        return []
    if case.codec in (None, "raw", DEFAULT_CODEC):
        return ranks_for(name, FEW_RANKS)
    return ranks_for(name, (2, 4)) if name in EVERY_CODEC else []


def _serves(collective: Collective, ranks: int) -> bool:
    try:
        collective.check(ranks)
    except ConfigError:
        return False
    return True


ALL_CASES = [
    Case(name, codec, size)
    for (name, collective), size in product(COLLECTIVES.items(), SIZES)
    for codec in (CODECS if collective.coded else (None,))
]


def trials(*, full: bool) -> list[tuple[Case, str]]:
    """Cases with a kind of data: the full product, or those of the quick run."""
    every = product(ALL_CASES, DATA)
    return [(c, data) for c, data in every if full or usual_ranks(c, data)]


@dataclass(frozen=True)
class Step:
    """What one rank saw in one step."""

    before: Tensor
    total: Tensor
    after: Tensor
    listed: int


def integers(rank: int, step: int, size: int) -> Tensor:
    """Whole numbers with many ties and zeros, a few of them large."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    values = torch.randint(-8, 9, (size,), generator=generator).float()
    values[torch.rand(size, generator=generator) < 0.01] *= 331
    return values


def reals(rank: int, step: int, size: int) -> Tensor:
    """Laplace values whose scale differs from one stretch to the next."""
    generator = torch.Generator().manual_seed(77 * step + rank)
    uniform = torch.rand(size, generator=generator) - 0.5
    scale = torch.exp(torch.arange(size) // 100 % 7 - 3.0)
    return -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-7) * scale


def equal(rank: int, step: int, size: int) -> Tensor:
    """The same everywhere: nothing but ties."""
    return torch.full((size,), 2.0)


def lonely(rank: int, step: int, size: int) -> Tensor:
    """One large value per rank in a vector of zeros, the same place on odd ranks."""
    values = torch.zeros(size)
    if size:
        values[(rank * (1 - rank % 2) * 37 + step) % size] = 1024.0 + rank
    return values


DATA = {"integers": integers, "reals": reals, "equal": equal, "lonely": lonely}


def run(group: Group, case: Case, data: str, steps: int = 3) -> list[Step]:
    """Some steps of a collective with error feedback, on one rank."""
    codec = None if case.codec is None else CODECS[case.codec]
    collective = COLLECTIVES[case.collective]
    return run_collective(group, collective, codec, case.size, data, steps)


def run_collective(
    group: Group,
    collective: Collective,
    codec: Codec | None,
    size: int,
    data: str,
    steps: int = 3,
) -> list[Step]:
    """The same of any collective."""
    layout, feedback = Layout.flat(size), Residual()
    state = collective.init(layout)
    memory = feedback.init(layout, torch.device("cpu"))
    out = torch.empty(size)
    seen = []
    for step in range(steps):
        grad = DATA[data](group.rank, step, size)
        before = memory.x.whole() + grad
        # As the pipeline does, so that candidates are extracted.
        feedback.accumulate([grad], memory)
        channel = Channel(group, codec, step=step)
        choice = choose(collective, state, size, step)
        total = collective.all_reduce_(memory.x, channel, state, lambda: out)
        if isinstance(total, SparseVector):
            dense, listed = total.to_dense(), total.nnz
        else:
            dense, listed = total.clone(), total.numel()
        if choice.finish is not None:
            choice.finish(0.001, channel)
        seen.append(Step(before, dense, memory.x.whole().clone(), listed))
    return seen


def count(group: Group, case: Case) -> tuple[int, int]:
    """Rounds and bytes of one rank in one step."""
    counted = Counted(group)
    run(counted, case, "integers", steps=1)
    return counted.traffic.rounds, counted.traffic.sent
